"""Which language is spoken in a window."""

from __future__ import annotations

from choral.audio.recording import Recording
from choral.engine.group import AnyEngine
from choral.engine.window import Caller, DetectLanguageParams, Languages, Window, WindowAudio
from choral.longform.cuts import Cutter


def detect_language(engine: AnyEngine, recording: Recording, n_mels: int) -> Languages:
    """From the first 30 s of a recording."""
    return detect_in(engine, Cutter(recording, n_mels).opening())


def detect_in(engine: AnyEngine, audio: WindowAudio, caller: Caller | None = None) -> Languages:
    return engine.submit(Window(audio, DetectLanguageParams()), caller).result()
