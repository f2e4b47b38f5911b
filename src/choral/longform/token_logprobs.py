"""The text tokens of a segment with their log-probabilities."""

from __future__ import annotations

from choral.errors import UsageError
from choral.model.tokenizer import Tokenizer
from choral.transcript import Segment, Token


def text_tokens(segment: Segment, tokenizer: Tokenizer) -> list[Token]:
    if segment.token_logprobs is None:
        raise UsageError("this segment has no token log-probabilities: transcribe with token_logprobs=True")
    pairs = zip(segment.tokens, segment.token_logprobs, strict=True)
    return [Token(tokenizer.token_bytes(token), logprob) for token, logprob in pairs if token < tokenizer.eot]
