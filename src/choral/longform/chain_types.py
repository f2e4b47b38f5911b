"""Types that the stages of a chain share: decode a window, split it into segments, time its words, filter them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from choral.audio.constants import MEL_FRAMES_PER_SECOND
from choral.audio.recording import Recording
from choral.engine.window import Result, Window, WindowAudio
from choral.longform.cuts import Cutter, cut_padded
from choral.model.tokenizer import Tokenizer
from choral.options import TranscribeOptions
from choral.transcript import Segment

# A stage of long-form logic: a generator that yields windows, is sent their results, and returns its own result.
Steps = Generator[Window[Any], Any, Result]


def request(window: Window[Result]) -> Steps[Result]:
    """Yields one window and returns its result, typed."""
    result: Result = yield window
    return result


@dataclass(frozen=True)
class WindowRange:
    """The mel frames of a recording that a window covers."""

    seek: int
    n_frames: int

    @property
    def start_s(self) -> float:
        return self.seek / MEL_FRAMES_PER_SECOND

    @property
    def duration_s(self) -> float:
        return self.n_frames / MEL_FRAMES_PER_SECOND

    @property
    def stop(self) -> int:
        return self.seek + self.n_frames


@dataclass(frozen=True)
class ChainContext:
    """What all chains over one recording share."""

    recording: Recording
    options: TranscribeOptions
    tokenizer: Tokenizer
    language: str
    n_text_ctx: int
    cutter: Cutter | None  # None: each window is scaled by itself and padded with silence

    def cut(self, window: WindowRange) -> WindowAudio:
        if self.cutter is None:
            return cut_padded(self.recording, window.seek, window.n_frames)
        return self.cutter.cut(window.seek, window.n_frames)


@dataclass(frozen=True)
class Attempt:
    """A window decoded at one temperature, with the scores that decide about a fallback."""

    tokens: tuple[int, ...]
    text: str
    temperature: float
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    token_logprobs: tuple[float, ...] | None


@dataclass(frozen=True)
class Split:
    """The segments of a window by its timestamp tokens, and where the next window starts."""

    segments: tuple[Segment, ...]
    next_seek: int
    is_closed: bool  # nothing more is said in this window: a single timestamp ends it, or its tail was kept


@dataclass(frozen=True)
class Accepted:
    """The segments of a window that remain after all filters, and where the next window starts."""

    segments: tuple[Segment, ...]
    next_seek: int
    is_discarded: bool = False  # the window leaves no trace, not even in the prompt
