"""The names under which clients may ask for a server's model: its own, those of other projects, and configured ones.

OpenAI's names stand for whatever is served, so that its clients work unchanged. The names of the same weights on
Hugging Face are those that vLLM and speaches serve them under.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from choral.errors import UsageError
from choral.model import catalog
from choral.server.api_errors import ApiError

OPENAI_NAMES = (
    "whisper-1",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-mini-transcribe-2025-12-15",
    "gpt-4o-transcribe-diarize",
    "gpt-transcribe",
    "gpt-live-transcribe",
    "gpt-realtime-whisper",
)
MAX_MODEL_NAME_CHARACTERS = 256
MAX_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class ModelNames:
    all: tuple[str, ...]  # the model's own name first
    accepts_any: bool = False

    @classmethod
    def of(cls, model_id: str, aliases: Sequence[str] = (), *, accepts_any: bool = False) -> ModelNames:
        """`aliases` are of the form NAME=MODEL, in which MODEL is a name of the model that is served."""
        names = [model_id, *OPENAI_NAMES, *_hub_names(model_id)]
        for alias in aliases:
            name, _, target = (part.strip() for part in alias.partition("="))
            if not name or len(name) > MAX_MODEL_NAME_CHARACTERS:
                raise UsageError(f"alias {alias!r} must look like NAME=MODEL, for example my-whisper={model_id}")
            if target not in names:
                raise UsageError(f"alias {alias!r} is for a model that is not served: write {name}={model_id}")
            names.append(name)
        return cls(tuple(dict.fromkeys(names)), accepts_any)

    def __contains__(self, name: str) -> bool:
        return name in self.all or (self.accepts_any and 0 < len(name) <= MAX_MODEL_NAME_CHARACTERS)

    def require(self, name: str) -> None:
        if name not in self:
            raise ApiError(
                f"there is no model {name[:MAX_SHOWN_CHARACTERS]!r} here: {self.advice}",
                status=404,
                param="model",
                code="model_not_found",
            )

    @property
    def advice(self) -> str:
        return f"use {self.all[0]} or {OPENAI_NAMES[0]}; GET /v1/models lists all names"


def _hub_names(model_id: str) -> Iterator[str]:
    """Repositories with the same weights on Hugging Face, and other names of them."""
    known = catalog.find(model_id)
    if known is None or known.repo is None:
        return
    yield from (known.name, *known.aliases, known.repo)
    is_distilled = known.name.startswith("distil-")
    size = known.name.removeprefix("distil-")
    yield f"Systran/faster-{'distil-' if is_distilled else ''}whisper-{size}"
