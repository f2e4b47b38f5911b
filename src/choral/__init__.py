"""Choral: speech to text with Whisper models, for many callers at once.

    import choral

    model = choral.load("base")
    transcript = model.transcribe("talk.mp3", language="en")
    print(transcript.text)
    print(choral.formats.srt(transcript))

Importing the package is cheap: numpy, torch and the rest load with the first call that needs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from choral.diarization import Diarization, Speaker, SpeakerTurn
from choral.options import SubtitleOptions, TranscribeOptions
from choral.transcript import Segment, Token, Transcript, Word

if TYPE_CHECKING:
    from choral import errors, formats, jobs
    from choral.api import Model, load
    from choral.audio.recording import Recording
    from choral.config import EngineSettings
    from choral.model.store import ModelStore as Store
    from choral.speakers.diarize import diarize
    from choral.speakers.voices import read_voices, voice_embedding

__version__ = "0.1.0"

__all__ = [
    "Diarization",
    "EngineSettings",
    "Model",
    "Recording",
    "Segment",
    "Speaker",
    "SpeakerTurn",
    "Store",
    "SubtitleOptions",
    "Token",
    "TranscribeOptions",
    "Transcript",
    "Word",
    "diarize",
    "errors",
    "formats",
    "jobs",
    "load",
    "read_voices",
    "voice_embedding",
]

_LAZY_MODULES = ("errors", "formats", "jobs")
_LAZY_NAMES = {
    "EngineSettings": "choral.config.EngineSettings",
    "Model": "choral.api.Model",
    "Recording": "choral.audio.recording.Recording",
    "Store": "choral.model.store.ModelStore",
    "diarize": "choral.speakers.diarize.diarize",
    "load": "choral.api.load",
    "load_with": "choral.api.load_with",  # deprecated
    "read_voices": "choral.speakers.voices.read_voices",
    "voice_embedding": "choral.speakers.voices.voice_embedding",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return import_module(f"choral.{name}")
    if name in _LAZY_NAMES:
        module, _, attribute = _LAZY_NAMES[name].rpartition(".")
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'choral' has no attribute {name!r}")
