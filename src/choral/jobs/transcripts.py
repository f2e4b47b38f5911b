"""Transcripts as JSON and back, exactly: what a client reads equals what the worker's model returned."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from choral.errors import JobFailed
from choral.types import Segment, Transcript, Word

VERSION = 1


def to_json(transcript: Transcript) -> str:
    """Every field; numbers that JSON cannot say (NaN, infinity) become null."""
    fields = {"v": VERSION, **dataclasses.asdict(transcript)}
    return json.dumps(_finite(fields), ensure_ascii=False, allow_nan=False)


def from_json(text: str | bytes) -> Transcript:
    fields = json.loads(text)
    version = fields.pop("v", None)
    if version != VERSION:
        raise JobFailed(f"this result has version {version!r}, and this Choral reads {VERSION}: update the older one")
    segments = tuple(_segment(own) for own in fields.pop("segments"))
    return Transcript(segments=segments, warnings=tuple(fields.pop("warnings")), **fields)


def _segment(fields: dict[str, Any]) -> Segment:
    words, tokens, logprobs = fields.pop("words"), fields.pop("tokens"), fields.pop("token_logprobs", None)
    others: dict[str, Any] = {name: math.nan if value is None else value for name, value in fields.items()}
    own_words = None if words is None else tuple(Word(**word) for word in words)
    own_logprobs = None if logprobs is None else tuple(logprobs)
    return Segment(**others, tokens=tuple(tokens), words=own_words, token_logprobs=own_logprobs)


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {name: _finite(own) for name, own in value.items()}
        case list() | tuple():
            return [_finite(own) for own in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
