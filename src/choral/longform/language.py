"""Which language is spoken, from the first 30 s of what is transcribed."""

from __future__ import annotations

from choral.audio.recording import Recording
from choral.engine.engine import Engine
from choral.engine.window import DetectLanguage, Languages, Window
from choral.longform.cuts import opening


def detect_language(engine: Engine, recording: Recording, start: int, peak: float | None) -> Languages:
    return engine.submit(Window(opening(recording, start, peak), DetectLanguage())).result()
