"""One window while it is decoded: its prompt tokens, its search, and its outcome. Plain Python."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from choral.engine.hotword_match import HotwordMatch
from choral.engine.runner import PrefillInput
from choral.engine.search import Draw, Next, Search, best_candidate, search_for
from choral.engine.steps import Failed, Finished, InProgress, Outcome
from choral.engine.window import Aligned, Decoded, DecodeParams, Languages, TokenTimes
from choral.errors import UsageError, WindowFailed
from choral.kernels.hotword_table import MAX_RETURNS
from choral.model.tokenizer import Tokenizer

MIN_START_TOKENS = 8  # start of transcript, language, task, no timestamps, and room for text


def initial_tokens(params: DecodeParams, tokenizer: Tokenizer, n_text_ctx: int) -> list[int]:
    """The decoder's input before the first sampled token: previous text, start of transcript, prefix."""
    hotword_tokens = params.hotwords.token_range if params.hotwords else ()
    require_tokens((*params.prompt, *params.prefix, *params.suppress_tokens, *hotword_tokens), tokenizer)
    half = n_text_ctx // 2
    prompt = [tokenizer.sot_prev, *params.prompt[-(half - 1) :]] if params.prompt else []
    start = tokenizer.sot_sequence(params.language, params.task)
    if not params.timestamps:
        start = (*start, tokenizer.no_timestamps)
    max_prefix = half - params.max_tokens if params.max_tokens and params.max_tokens < half else half // 2
    return [*prompt, *start, *params.prefix[-min(max_prefix, half - MIN_START_TOKENS) :]]


def require_tokens(tokens: Iterable[int], tokenizer: Tokenizer) -> None:
    """Refuse a token outside the vocabulary: it would read or write the memory of other tokens."""
    for token in tokens:
        if not 0 <= token < tokenizer.n_vocab:
            raise UsageError(f"there is no token {token}: this model's tokens are 0 to {tokenizer.n_vocab - 1}")


def window_seed(params: DecodeParams, audio_key: bytes) -> int:
    """A seed derived from the window alone, so that its samples do not depend on other windows or their order."""
    digest = hashlib.blake2b(audio_key, digest_size=8)
    digest.update(repr((params.seed, params.temperature, params.prompt, params.prefix)).encode())
    return int.from_bytes(digest.digest(), "big") >> 2


@dataclass(frozen=True)
class Advanced:
    """A window's search with a token more in every row."""

    search: Search
    continued: list[Next]
    n_sampled: int
    length: int
    fork: Fork | None = None
    returned_from: Fork | None = None  # that this step has gone back to


@dataclass(frozen=True)
class Fork:
    """Where a greedy text took a boosted token. If the hotword does not become whole, the other token is taken."""

    other: Advanced
    recent: Any  # the rules' history with the other token
    next: Fork | None = None  # if the other token begins a hotword too, and that one does not become whole


class Decoding:
    """A window whose tokens are searched on the host. Only `apply` changes it."""

    def __init__(
        self, start: PrefillInput, n_prompt: int, no_speech_prob: float, tokenizer: Tokenizer, n_text_ctx: int
    ) -> None:
        self.slots, self.params = start.slots, start.params
        self.search = search_for(start.params, tokenizer.eot, tokenizer.starts_word)
        self.length = n_prompt  # tokens that were run through the network
        self.n_sampled = 0
        self.fork: Fork | None = None
        self.n_returns = 0
        self.no_speech_prob = no_speech_prob
        self._n_text_ctx = n_text_ctx
        self._max_tokens = start.params.max_tokens or n_text_ctx // 2
        self._seed = window_seed(start.params, start.audio_key)

    @property
    def row_slots(self) -> list[int]:
        """The slots of the rows that continue."""
        return [self.slots[row] for row in self.search.rows]

    @property
    def matches(self) -> list[HotwordMatch | None]:
        """The hotwords of the rows that continue."""
        if self.n_returns == MAX_RETURNS:
            return [None] * len(self.search.rows)
        return [self.search.matches[row] for row in self.search.rows]

    def draws(self) -> list[Draw]:
        return [Draw(self.params.temperature, self._seed + row, self.n_sampled) for row in self.search.rows]

    def advanced(self, tokens: Sequence[Any], logprobs: Sequence[Any]) -> Advanced:
        """A copy of the search with these tokens, one for each row, or the best ones of each beam."""
        search = copy(self.search)
        return Advanced(search, search.advance(tokens, logprobs), self.n_sampled + 1, self.length + 1)

    def is_last(self, advanced: Advanced) -> bool:
        is_full = advanced.length > self._n_text_ctx
        return not advanced.continued or is_full or advanced.n_sampled >= self._max_tokens

    def outcome(self, advanced: Advanced, compute_type: str) -> Outcome:
        search = advanced.search
        if math.isnan(self.no_speech_prob) or any(map(math.isnan, search.sum_logprobs)):
            return Failed(nan_failure(compute_type))
        if not self.is_last(advanced):
            return InProgress(has_tokens=True)
        best = best_candidate(search, self.params.length_penalty)
        logprobs = best.token_logprobs if self.params.token_logprobs else None
        return Finished(Decoded(best.tokens, best.avg_logprob, self.no_speech_prob, logprobs))

    def apply(self, advanced: Advanced) -> None:
        self.search, self.fork = advanced.search, advanced.fork
        self.n_sampled, self.length = advanced.n_sampled, advanced.length
        self.n_returns += advanced.returned_from is not None


def finished(result: Aligned | TokenTimes | Languages, compute_type: str) -> Outcome:
    """The outcome of an alignment or a language detection."""
    probabilities = result.probabilities.values() if isinstance(result, Languages) else result.token_probs.tolist()
    return Failed(nan_failure(compute_type)) if any(map(math.isnan, probabilities)) else Finished(result)


def nan_failure(compute_type: str) -> WindowFailed:
    return WindowFailed(
        f"the model computed NaN (not a number) in {compute_type}; "
        "use --compute-type float32, and pull the model again if that does not help"
    )


def device_failed(error: BaseException) -> WindowFailed:
    """Wraps errors of torch and CTranslate2: out of memory, a lost device."""
    failure = WindowFailed(f"the device failed on this window: {error}")
    failure.__cause__ = error
    return failure
