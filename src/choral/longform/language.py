"""Which language is spoken in a window."""

from __future__ import annotations

from choral.audio.mel import mel_peak
from choral.audio.recording import Recording
from choral.engine.group import AnyEngine
from choral.engine.window import Caller, DetectLanguage, Languages, Window, WindowAudio
from choral.longform.cuts import opening


def detect_language(engine: AnyEngine, recording: Recording, n_mels: int) -> Languages:
    """From the first 30 s of a recording."""
    return detect_in(engine, opening(recording, mel_peak(recording, n_mels)))


def detect_in(engine: AnyEngine, audio: WindowAudio, caller: Caller | None = None) -> Languages:
    return engine.submit(Window(audio, DetectLanguage()), caller).result()
