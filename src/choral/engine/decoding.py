"""One window while it is decoded: its places, its search, how far it got. Plain Python."""

from __future__ import annotations

import hashlib
import math

from choral.engine.runner import PrefillInput
from choral.engine.search import Draw, Next, best_candidate, search_for
from choral.engine.steps import Failed, Finished, InProgress, Outcome
from choral.engine.window import Aligned, Decoded, DecodeParams, Languages, TokenTimes
from choral.errors import WindowFailed


class Decoding:
    def __init__(self, start: PrefillInput, n_prompt: int, no_speech_prob: float, eot: int, n_text_ctx: int) -> None:
        self.slots, self.params, self.is_watched = start.slots, start.params, start.is_watched
        self.search = search_for(start.params, eot)
        self.length = n_prompt  # tokens that were run through the network
        self.n_sampled = 0
        self.no_speech_prob = no_speech_prob
        self._n_text_ctx = n_text_ctx
        self._max_tokens = start.params.max_tokens or n_text_ctx // 2
        self._seed = window_seed(start.params, start.audio_key)

    @property
    def row_slots(self) -> list[int]:
        """The places of the rows that go on."""
        return [self.slots[row] for row in self.search.rows]

    def draws(self) -> list[Draw]:
        return [Draw(self.params.temperature, self._seed + row, self.n_sampled) for row in self.search.rows]

    def moved_on(self, going_on: list[Next]) -> bool:
        """Counts a token; False: that was the last one."""
        is_full = self.length >= self._n_text_ctx
        self.n_sampled += 1
        self.length += 1
        return bool(going_on) and not is_full and self.n_sampled < self._max_tokens

    def outcome(self, *, is_going_on: bool, compute_type: str) -> Outcome:
        if math.isnan(self.no_speech_prob) or any(map(math.isnan, self.search.sum_logprobs)):
            return Failed(not_numbers(compute_type))
        if is_going_on and not self.is_watched:
            return InProgress(None)
        best = best_candidate(self.search, self.params.length_penalty)
        if is_going_on:
            return InProgress(best.tokens)
        logprobs = best.token_logprobs if self.params.token_logprobs else None
        return Finished(Decoded(best.tokens, best.avg_logprob, self.no_speech_prob, logprobs))


def answered(answer: Aligned | TokenTimes | Languages, compute_type: str) -> Outcome:
    probabilities = answer.probabilities.values() if isinstance(answer, Languages) else answer.token_probs.tolist()
    return Failed(not_numbers(compute_type)) if any(map(math.isnan, probabilities)) else Finished(answer)


def not_numbers(compute_type: str) -> WindowFailed:
    return WindowFailed(
        f"the model answered with numbers that are not numbers in {compute_type}; "
        "use --compute-type float32, and fetch the model again if that does not help"
    )


def device_failed(error: BaseException) -> WindowFailed:
    """Torch's and CTranslate2's own errors: out of memory, a lost device."""
    failure = WindowFailed(f"the device failed on this window: {error}")
    failure.__cause__ = error
    return failure


def window_seed(params: DecodeParams, audio_key: bytes) -> int:
    """A seed of the window's own: its samples do not depend on what else was decoded, or in which order."""
    digest = hashlib.blake2b(audio_key, digest_size=8)
    digest.update(repr((params.seed, params.temperature, params.prompt, params.prefix)).encode())
    return int.from_bytes(digest.digest(), "big") >> 2
