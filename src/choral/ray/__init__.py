"""Choral on a Ray cluster: `transcribe` adds transcripts to a Ray dataset.

    import choral.ray, ray

    dataset = choral.ray.transcribe(ray.data.from_items([{"path": "talk.mp3"}]), model="large-v3-turbo")
    dataset.write_parquet("transcripts")

Needs the extra `ray`. The engines are actors, one per GPU; everything else of a request runs in Ray Data's tasks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from choral.ray.dataset import transcribe

__all__ = ["transcribe"]

_LAZY_NAMES = {"transcribe": "choral.ray.dataset"}


def __getattr__(name: str) -> Any:
    if name in _LAZY_NAMES:
        return getattr(import_module(_LAZY_NAMES[name]), name)
    raise AttributeError(f"module 'choral.ray' has no attribute {name!r}")
