"""A transcript as the body of an answer: the shapes of OpenAI's API, with the text without spaces around it.

Streamed and whole answers have the same text, letter by letter: `TextAccumulator` makes both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from starlette.responses import PlainTextResponse, Response

from choral import formats
from choral.server.speech_form import SpeechRequest
from choral.types import Segment, Token, Transcript

AUDIO_TOKENS_PER_S = 50  # positions of the encoder
SUBTITLE_TYPES = {"srt": "application/x-subrip", "vtt": "text/vtt"}


class TextAccumulator:
    """Text that grows by segments; what is given out never changes, and white space waits for what follows it."""

    def __init__(self) -> None:
        self.text = ""
        self._space = ""

    def add(self, segment: Segment) -> str:
        """What this segment adds; nothing if it is blank."""
        return self.add_text(segment.text)

    def add_text(self, text: str) -> str:
        grown = (self._space + text) if self.text else text.lstrip()
        delta = grown.rstrip()
        self._space = grown[len(delta) :]
        self.text += delta
        return delta


def joined_text(segments: Iterable[Segment]) -> str:
    so_far = TextAccumulator()
    for segment in segments:
        so_far.add(segment)
    return so_far.text


def transcript_response(transcript: Transcript, request: SpeechRequest, tokens: Sequence[Token] | None) -> Response:
    """With the log-probabilities of these tokens, where they were asked for."""
    match request.response_format:
        case "text":
            return PlainTextResponse(joined_text(transcript.segments) + "\n")
        case "srt" | "vtt" as name:
            return Response(formats.render(transcript, name), media_type=f"{SUBTITLE_TYPES[name]}; charset=utf-8")
        case "verbose_json":
            return json_response(verbose_fields(transcript, request))
        case "json":
            usage = {"type": "duration", "seconds": math.ceil(transcript.duration)}
            return json_response({"text": joined_text(transcript.segments), "usage": usage, **logprobs(tokens)})


def verbose_fields(transcript: Transcript, request: SpeechRequest) -> dict[str, Any]:
    """Those of `choral transcribe --format verbose_json`; the parts that were not asked for are null."""
    fields: dict[str, Any] = json.loads(formats.verbose_json(transcript))
    fields["text"] = joined_text(transcript.segments)
    words = fields.pop("words", [])
    fields["words"] = words if request.options.word_timestamps else None
    if "segment" not in request.granularities:
        fields["segments"] = None
    fields["usage"] = {"type": "duration", "seconds": math.ceil(transcript.duration)}
    return fields


def json_response(fields: dict[str, Any]) -> Response:
    return Response(json.dumps(fields, ensure_ascii=False, allow_nan=False), media_type="application/json")


def logprobs(tokens: Sequence[Token] | None) -> dict[str, Any]:
    """The field of this name, in OpenAI's shape; none if nobody asked."""
    if tokens is None:
        return {}
    shown = [(token.text.decode("utf-8", "replace"), list(token.text), token.logprob) for token in tokens]
    return {"logprobs": [dict(zip(("token", "bytes", "logprob"), own, strict=True)) for own in shown]}


def delta_event(delta: str, tokens: Sequence[Token] | None) -> bytes:
    return event({"type": "transcript.text.delta", "delta": delta, **logprobs(tokens)})


def done_event(transcript: Transcript, text: str, tokens: Sequence[Token] | None) -> bytes:
    heard = math.ceil(transcript.duration * AUDIO_TOKENS_PER_S)
    written = sum(len(segment.tokens) for segment in transcript.segments)
    usage = {
        "type": "tokens",
        "input_tokens": heard,
        "input_token_details": {"audio_tokens": heard, "text_tokens": 0},
        "output_tokens": written,
        "total_tokens": heard + written,
    }
    return event({"type": "transcript.text.done", "text": text, "usage": usage, **logprobs(tokens)})


def event(fields: dict[str, Any]) -> bytes:
    """One of a stream of server-sent events."""
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()


END_OF_EVENTS = b"data: [DONE]\n\n"
