"""All that the decoder is given before it speaks itself: the text before, the start of transcript, the prefix."""

from __future__ import annotations

from collections.abc import Iterable

from choral.engine.window import Decode
from choral.errors import UsageError
from choral.model.tokenizer import Tokenizer

ROOM_FOR_START = 8  # start of transcript, language, task, no timestamps, and something to say


def initial_tokens(work: Decode, tokenizer: Tokenizer, n_text_ctx: int) -> list[int]:
    require_known((*work.prompt, *work.prefix, *work.suppress_tokens), tokenizer)
    half = n_text_ctx // 2
    prompt = [tokenizer.sot_prev, *work.prompt[-(half - 1) :]] if work.prompt else []
    start = tokenizer.sot_sequence(work.language, work.task)
    if not work.timestamps:
        start = (*start, tokenizer.no_timestamps)
    room = half - work.max_tokens if work.max_tokens and work.max_tokens < half else half // 2
    return [*prompt, *start, *work.prefix[-min(room, half - ROOM_FOR_START) :]]


def require_known(tokens: Iterable[int], tokenizer: Tokenizer) -> None:
    """A number that is no token would be read from, or written to, somebody else's memory."""
    for token in tokens:
        if not 0 <= token < tokenizer.n_vocab:
            raise UsageError(f"there is no token {token}: this model's are 0 to {tokenizer.n_vocab - 1}")
