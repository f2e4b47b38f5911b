"""The engine's input and output: a window of at most 30 s of audio with its parameters, and the result.

Nothing here needs torch.
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
from choral.engine.hotword_trie import HotwordTrie
from choral.options import Priority, Task

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class WindowAudio:
    """A cut from a recording, with a few samples more on both sides: its mel features equal those of the whole."""

    samples: npt.NDArray[np.float32]
    lead: int  # samples before the window's start
    n_mel_frames: int  # how many of the 3,000 mel frames are audio; the rest stay zero
    mel_peak: float | None  # largest mel value of the recording; None: the window is the whole recording

    @cached_property
    def key(self) -> bytes:
        """A hash of the content: the same audio has the same key."""
        digest = hashlib.sha256(np.ascontiguousarray(self.samples).data)  # CPUs have instructions for it
        digest.update(repr((self.lead, self.n_mel_frames, self.mel_peak)).encode())
        return digest.digest()

    def log_mel(self, n_mels: int) -> npt.NDArray[np.float32]:  # [n_mels, 3000]
        mel = np.zeros((n_mels, WINDOW_MEL_FRAMES), dtype=np.float32)
        n_covered = min(n_frames_covering(self.samples.size - self.lead), WINDOW_MEL_FRAMES)
        n_frames = self.n_mel_frames if self.mel_peak is not None else max(self.n_mel_frames, n_covered)
        computed = log_mel(self.samples, n_mels, lead=self.lead, n_frames=n_frames, peak=self.mel_peak)
        mel[:, : self.n_mel_frames] = computed[:, : self.n_mel_frames]
        return mel


class Params(Generic[Result]):
    """What to do with a window; the type parameter is the type of its result."""


@dataclass(frozen=True)
class Decoded:
    tokens: tuple[int, ...]  # without prompt, prefix and end of text
    avg_logprob: float
    no_speech_prob: float
    token_logprobs: tuple[float, ...] | None = None  # of each token; None: not requested


@dataclass(frozen=True)
class Aligned:
    """Cross-attention scores of a known text, before the softmax."""

    scores: npt.NDArray[np.float32]  # [alignment heads, start + text + end tokens, frames]
    n_start_tokens: int  # tokens before the one that predicts the first text token
    token_probs: npt.NDArray[np.float32]  # of each text token


@dataclass(frozen=True)
class TokenTimes:
    """The alignment of a runner that computes token times itself."""

    token_frames: npt.NDArray[np.intp]  # where each text token starts, and then the end of text
    token_probs: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Languages:
    probabilities: dict[str, float]

    @property
    def best(self) -> str:
        return max(self.probabilities, key=lambda code: self.probabilities[code])


@dataclass(frozen=True, kw_only=True)
class DecodeParams(Params[Decoded]):
    """One decoding attempt at one temperature: greedy, beam search or sampling."""

    prompt: tuple[int, ...] = ()  # tokens of the previous text
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
    token_logprobs: bool = False
    seed: int = 0
    hotwords: HotwordTrie | None = None
    hotword_boost: float = 0.0  # added to the logits of tokens that begin or continue a hotword


@dataclass(frozen=True)
class DetectLanguageParams(Params[Languages]):
    pass


@dataclass(frozen=True, kw_only=True)
class AlignParams(Params[Aligned | TokenTimes]):
    text_tokens: tuple[int, ...]
    n_frames: int  # how many of the 1,500 encoder frames are audio
    language: str | None
    task: Task


@dataclass(frozen=True, eq=False)
class Window(Generic[Result]):
    audio: WindowAudio
    params: Params[Result]


@dataclass(frozen=True, eq=False)
class Caller:
    """Identifies whose windows these are: the engine shares its time between callers, not between windows.

    A caller whose first window was admitted is never refused afterwards.
    """

    priority: Priority = "interactive"
