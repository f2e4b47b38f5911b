"""Choral turns speech into text with Whisper models: many voices, one pass.

    import choral

    model = choral.load("base")
    transcript = model.transcribe("talk.mp3", language="en")
    print(transcript.text)
    print(choral.formats.srt(transcript))

Importing this is light: numpy, torch and the rest are loaded by the first call that needs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from choral.types import Segment, SubtitleOptions, TranscribeOptions, Transcript, Word

if TYPE_CHECKING:
    from choral import errors, formats, jobs
    from choral.api import Model, load, load_with
    from choral.audio.recording import Recording
    from choral.config import EngineSettings
    from choral.model.store import Store

__version__ = "0.1.0"

__all__ = [
    "EngineSettings",
    "Model",
    "Recording",
    "Segment",
    "Store",
    "SubtitleOptions",
    "TranscribeOptions",
    "Transcript",
    "Word",
    "errors",
    "formats",
    "jobs",
    "load",
    "load_with",
]

_HOMES = {
    "EngineSettings": "choral.config",
    "Model": "choral.api",
    "load": "choral.api",
    "load_with": "choral.api",
    "Recording": "choral.audio.recording",
    "Store": "choral.model.store",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "formats", "jobs"):
        return import_module(f"choral.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'choral' has no attribute {name!r}")
