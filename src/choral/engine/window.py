"""What the engine takes and gives: a window of audio with the work to do on it, and the work's result.

A window is at most 30 s. `WindowAudio` is a cut from a recording, with a little sound on both sides, so that its mel
features equal a slice of the whole recording's. Nothing here needs torch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from choral.audio.constants import WINDOW_MEL_FRAMES
from choral.audio.mel import log_mel, n_frames_covering
from choral.types import Priority, Task

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class WindowAudio:
    samples: npt.NDArray[np.float32]
    lead: int  # samples of sound before the window's start
    n_mel_frames: int  # how many of the 3,000 mel frames are sound; the rest stay zero
    mel_peak: float | None  # loudest mel value of the recording; None: it is in this window, which has all of it

    @cached_property
    def key(self) -> bytes:
        """The same audio has the same key, whoever asks."""
        digest = hashlib.sha256(np.ascontiguousarray(self.samples).data)  # CPUs have instructions for this one
        digest.update(repr((self.lead, self.n_mel_frames, self.mel_peak)).encode())
        return digest.digest()

    def log_mel(self, n_mels: int) -> npt.NDArray[np.float32]:  # [n_mels, 3000]
        mel = np.zeros((n_mels, WINDOW_MEL_FRAMES), dtype=np.float32)
        n_heard = min(n_frames_covering(self.samples.size - self.lead), WINDOW_MEL_FRAMES)
        n_frames = self.n_mel_frames if self.mel_peak is not None else max(self.n_mel_frames, n_heard)
        heard = log_mel(self.samples, n_mels, lead=self.lead, n_frames=n_frames, peak=self.mel_peak)
        mel[:, : self.n_mel_frames] = heard[:, : self.n_mel_frames]
        return mel


class Params(Generic[Result]):
    """What to do with a window; the type parameter is what comes back."""


@dataclass(frozen=True)
class Decoded:
    tokens: tuple[int, ...]  # without prompt, prefix and end of text
    avg_logprob: float
    no_speech_prob: float
    token_logprobs: tuple[float, ...] | None = None  # of each token; None: not asked for


@dataclass(frozen=True)
class Aligned:
    """Cross-attention scores of a known text, before the softmax."""

    scores: npt.NDArray[np.float32]  # [alignment heads, start + text + end tokens, frames]
    n_start_tokens: int  # how many of them stand before the one that predicts the first text token
    token_probs: npt.NDArray[np.float32]  # of each text token


@dataclass(frozen=True)
class TokenTimes:
    """The same of a runner that finds the times itself."""

    token_frames: npt.NDArray[np.intp]  # at which each text token starts, and at last the end of text
    token_probs: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Languages:
    probabilities: dict[str, float]

    @property
    def best(self) -> str:
        return max(self.probabilities, key=lambda code: self.probabilities[code])


@dataclass(frozen=True, kw_only=True)
class DecodeParams(Params[Decoded]):
    """One try at one temperature: greedy, beam search or sampling."""

    prompt: tuple[int, ...] = ()  # tokens of the text before
    prefix: tuple[int, ...] = ()  # tokens the text starts with
    language: str | None = None
    task: Task = "transcribe"
    timestamps: bool = True
    temperature: float = 0.0
    n_candidates: int = 1  # beams at temperature 0, samples above
    patience: float = 1.0
    length_penalty: float | None = None
    max_tokens: int | None = None
    suppress_tokens: tuple[int, ...] = ()
    suppress_blank: bool = True
    max_initial_timestamp: float | None = 1.0
    token_logprobs: bool = False  # whether they are wanted
    seed: int = 0


@dataclass(frozen=True)
class DetectLanguageParams(Params[Languages]):
    pass


@dataclass(frozen=True, kw_only=True)
class AlignParams(Params[Aligned | TokenTimes]):
    text_tokens: tuple[int, ...]
    n_frames: int  # how many of the 1,500 are sound
    language: str | None
    task: Task


@dataclass(frozen=True, eq=False)
class Window(Generic[Result]):
    audio: WindowAudio
    params: Params[Result]


@dataclass(frozen=True, eq=False)
class Caller:
    """Whose windows these are: the engine shares its time between callers, not between windows.

    A caller whose first window was taken is never refused afterwards.
    """

    priority: Priority = "interactive"
