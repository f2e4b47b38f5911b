"""One window, decoded at rising temperatures until the text is neither repetitive nor improbable."""

from __future__ import annotations

import zlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from choral.engine.window import Decoded, DecodeParams, Result, Window, WindowAudio
from choral.model.tokenizer import Tokenizer
from choral.types import TranscribeOptions

# A piece of long-form logic: it yields windows, is sent their results, and returns what it made of them.
Steps = Generator[Window[Any], Any, Result]


@dataclass(frozen=True)
class Attempt:
    """What the window's best temperature gave."""

    tokens: tuple[int, ...]
    text: str
    temperature: float
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    token_logprobs: tuple[float, ...] | None


def ask(window: Window[Result]) -> Steps[Result]:
    """Yields one window and returns its result, with its type."""
    result: Result = yield window
    return result


def decode_with_fallback(
    audio: WindowAudio, works: list[DecodeParams], options: TranscribeOptions, tokenizer: Tokenizer
) -> Steps[Attempt]:
    """Tries `works`, one for each temperature, in turn; the last one stands whatever it gives."""
    assert works
    for work in works:
        decoded = yield from ask(Window(audio, work))
        attempt = judge(decoded, work.temperature, tokenizer)
        if not needs_another(attempt, options):
            break
    return attempt


def judge(decoded: Decoded, temperature: float, tokenizer: Tokenizer) -> Attempt:
    text = tokenizer.decode(decoded.tokens).strip()
    return Attempt(
        tokens=decoded.tokens,
        text=text,
        temperature=temperature,
        avg_logprob=decoded.avg_logprob,
        no_speech_prob=decoded.no_speech_prob,
        compression_ratio=compression_ratio(text),
        token_logprobs=decoded.token_logprobs,
    )


def needs_another(attempt: Attempt, options: TranscribeOptions) -> bool:
    ratio = options.compression_ratio_threshold
    is_repetitive = ratio is not None and attempt.compression_ratio > ratio
    return (is_repetitive or is_improbable(attempt, options)) and not sounds_silent(attempt, options)


def is_improbable(attempt: Attempt, options: TranscribeOptions) -> bool:
    return options.logprob_threshold is not None and attempt.avg_logprob < options.logprob_threshold


def sounds_silent(attempt: Attempt, options: TranscribeOptions) -> bool:
    """Likely no speech, and improbable as text: another temperature would only invent something else."""
    threshold = options.no_speech_threshold
    return threshold is not None and attempt.no_speech_prob > threshold and is_improbable(attempt, options)


def is_silence(attempt: Attempt, options: TranscribeOptions) -> bool:
    """Whether the window is skipped: likely no speech, unless the text is probable all the same."""
    threshold = options.no_speech_threshold
    if threshold is None or attempt.no_speech_prob <= threshold:
        return False
    return options.logprob_threshold is None or attempt.avg_logprob <= options.logprob_threshold


def compression_ratio(text: str) -> float:
    raw = text.encode("utf-8")
    return len(raw) / len(zlib.compress(raw))
