"""Temperature fallback: decodes a window at rising temperatures until the text is neither repetitive nor improbable."""

from __future__ import annotations

import zlib

from choral.engine.window import Decoded, DecodeParams, Window, WindowAudio
from choral.longform.chain_types import Attempt, Steps, request
from choral.longform.compute_budget import ComputeBudget
from choral.model.tokenizer import Tokenizer
from choral.options import TranscribeOptions


def decode_with_fallback(
    audio: WindowAudio,
    params_by_temperature: list[DecodeParams],
    options: TranscribeOptions,
    tokenizer: Tokenizer,
    budget: ComputeBudget | None = None,
    *,
    return_repetitive: bool = False,
) -> Steps[Attempt]:
    """Tries one set of parameters per temperature while the budget lasts; the last attempt is returned anyway.

    With `return_repetitive` so is one with repetitive text, for which the caller has something better to try.
    """
    assert params_by_temperature
    for params in params_by_temperature:
        decoded = yield from request(Window(audio, params))
        attempt = score(decoded, params.temperature, tokenizer)
        if budget is not None:
            budget.count_sequences(params.n_candidates)
        if not needs_fallback(attempt, options) or params is params_by_temperature[-1]:
            break
        if return_repetitive and is_repetitive(attempt, options):
            break
        if budget is not None and not budget.allows_fallback():
            break
    return attempt


def score(decoded: Decoded, temperature: float, tokenizer: Tokenizer) -> Attempt:
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


def needs_fallback(attempt: Attempt, options: TranscribeOptions) -> bool:
    """Whether a higher temperature may help; on likely silence it would only invent other text."""
    threshold = options.no_speech_threshold
    is_improbable = options.logprob_threshold is not None and attempt.avg_logprob < options.logprob_threshold
    is_likely_silence = threshold is not None and attempt.no_speech_prob > threshold and is_improbable
    return (is_repetitive(attempt, options) or is_improbable) and not is_likely_silence


def is_repetitive(attempt: Attempt, options: TranscribeOptions) -> bool:
    max_ratio = options.compression_ratio_threshold
    return max_ratio is not None and attempt.compression_ratio > max_ratio


def is_silence(attempt: Attempt, options: TranscribeOptions) -> bool:
    """Whether the window is skipped: likely no speech, unless its text is probable."""
    threshold = options.no_speech_threshold
    if threshold is None or attempt.no_speech_prob <= threshold:
        return False
    return options.logprob_threshold is None or attempt.avg_logprob <= options.logprob_threshold


def compression_ratio(text: str) -> float:
    raw = text.encode("utf-8")
    return len(raw) / len(zlib.compress(raw))
