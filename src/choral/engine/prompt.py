"""All that the decoder is given before it speaks itself: the text before, the start of transcript, the prefix."""

from __future__ import annotations

from collections.abc import Iterable

from choral.engine.window import DecodeParams
from choral.errors import UsageError
from choral.model.tokenizer import Tokenizer

ROOM_FOR_START = 8  # start of transcript, language, task, no timestamps, and something to say


def initial_tokens(params: DecodeParams, tokenizer: Tokenizer, n_text_ctx: int) -> list[int]:
    require_known((*params.prompt, *params.prefix, *params.suppress_tokens), tokenizer)
    half = n_text_ctx // 2
    prompt = [tokenizer.sot_prev, *params.prompt[-(half - 1) :]] if params.prompt else []
    start = tokenizer.sot_sequence(params.language, params.task)
    if not params.timestamps:
        start = (*start, tokenizer.no_timestamps)
    room = half - params.max_tokens if params.max_tokens and params.max_tokens < half else half // 2
    return [*prompt, *start, *params.prefix[-min(room, half - ROOM_FOR_START) :]]


def require_known(tokens: Iterable[int], tokenizer: Tokenizer) -> None:
    """A number that is no token would be read from, or written to, somebody else's memory."""
    for token in tokens:
        if not 0 <= token < tokenizer.n_vocab:
            raise UsageError(f"there is no token {token}: this model's are 0 to {tokenizer.n_vocab - 1}")
