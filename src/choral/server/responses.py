"""Response bodies in the shapes of OpenAI's API, whole or streamed as server-sent events.

Streamed and whole responses have exactly the same text: `TextAccumulator` strips surrounding white space from both. A
stream starts with its first text, so that errors before it still get an HTTP status. When the client disconnects or the
server shuts down, the transcription is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from choral import formats
from choral.common.aio import cancel_tasks
from choral.errors import ChoralError
from choral.server.api_errors import error_fields, to_api_error
from choral.server.diarized_json import SpeakerLabels, diarized_fields
from choral.server.disconnect import ClientClosedRequest, cancel_on_disconnect
from choral.server.speech_form import SpeechRequest
from choral.transcript import Segment, Token, Transcript

AUDIO_TOKENS_PER_S = 50  # encoder positions
MEDIA_TYPES = {
    "text": "text/plain",
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
    "tsv": "text/tab-separated-values",
    "rttm": "text/plain",
}
EVENT_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must not buffer
END_OF_EVENTS = b"data: [DONE]\n\n"


class Usage(BaseModel):
    type: Literal["duration"] = "duration"
    seconds: Annotated[int, Field(ge=0)]


class TokenLogprob(BaseModel):
    token: str
    bytes: list[Annotated[int, Field(ge=0, le=255)]]
    logprob: float


class DetectedLanguage(BaseModel):
    code: str


class TranscriptionBody(BaseModel):
    """The JSON formats: `json` has text, usage, logprobs and languages; `verbose_json` all but these two.

    `diarized_json` has task, duration, text, usage and segments.
    """

    model_config = ConfigDict(extra="allow")

    text: str
    usage: Usage
    logprobs: list[TokenLogprob] = []
    languages: list[DetectedLanguage] = []
    language: str = ""
    duration: float = 0.0
    segments: list[dict[str, Any]] | None = None
    words: list[dict[str, Any]] | None = None


class TextAccumulator:
    """Joins segment texts; text that was returned never changes, and white space is held until text follows it."""

    def __init__(self) -> None:
        self.text = ""
        self._space = ""

    def add(self, text: str) -> str:
        """The text that this adds; empty for white space."""
        grown = (self._space + text) if self.text else text.lstrip()
        delta = grown.rstrip()
        self._space = grown[len(delta) :]
        self.text += delta
        return delta


def joined_text(segments: Iterable[Segment]) -> str:
    accumulator = TextAccumulator()
    for segment in segments:
        accumulator.add(segment.text)
    return accumulator.text


def transcript_response(transcript: Transcript, request: SpeechRequest, tokens: Sequence[Token] | None) -> Response:
    """The whole response; `tokens` are those whose log-probabilities were requested."""
    match request.form.response_format:
        case "text" if request.options.diarize:
            return PlainTextResponse(formats.text(transcript))
        case "text":
            return PlainTextResponse(joined_text(transcript.segments) + "\n")
        case "srt" | "vtt" as name:
            return Response(formats.render(transcript, name), media_type=f"{MEDIA_TYPES[name]}; charset=utf-8")
        case "verbose_json":
            return json_response(_verbose_fields(transcript, request))
        case "diarized_json":
            text = joined_text(transcript.segments)
            fields = diarized_fields(transcript, text, request.form.speaker_labels)
            return json_response(fields | {"usage": usage_fields(transcript)})
        case "json":
            fields = {"text": joined_text(transcript.segments), "usage": usage_fields(transcript), **_logprobs(tokens)}
            return json_response(fields | (_languages(transcript) if request.form.has_languages else {}))


def _verbose_fields(transcript: Transcript, request: SpeechRequest) -> dict[str, Any]:
    """The fields of `choral transcribe --format verbose_json`; without what was not requested and what is null."""
    fields: dict[str, Any] = formats.verbose_fields(transcript)
    granularities = request.form.timestamp_granularities or ["segment"]
    words = fields.pop("words", [])
    fields["text"] = joined_text(transcript.segments)
    if request.options.word_timestamps:
        fields["words"] = words
    if "segment" not in granularities:
        del fields["segments"]
    fields["usage"] = usage_fields(transcript)
    return {name: value for name, value in fields.items() if value is not None}


def _languages(transcript: Transcript) -> dict[str, Any]:
    """OpenAI's `languages` field: the detected ones, in the order of their first segments."""
    codes = dict.fromkeys(segment.language or transcript.language for segment in transcript.segments)
    return {"languages": [{"code": code} for code in codes]}


def usage_fields(transcript: Transcript) -> dict[str, Any]:
    return Usage(seconds=math.ceil(transcript.duration)).model_dump()


def json_response(fields: dict[str, Any]) -> Response:
    return Response(json.dumps(fields, ensure_ascii=False, allow_nan=False), media_type="application/json")


def _logprobs(tokens: Sequence[Token] | None) -> dict[str, Any]:
    """OpenAI's `logprobs` field; no field if it was not requested."""
    return {} if tokens is None else {"logprobs": logprob_fields(tokens)}


def logprob_fields(tokens: Sequence[Token]) -> list[dict[str, Any]]:
    return [
        {"token": token.text.decode("utf-8", "replace"), "bytes": list(token.text), "logprob": token.logprob}
        for token in tokens
    ]


# --- server-sent events ---


def event(fields: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()


def _done_fields(transcript: Transcript, text: str, tokens: Sequence[Token] | None) -> dict[str, Any]:
    n_audio = math.ceil(transcript.duration * AUDIO_TOKENS_PER_S)
    n_text = sum(len(segment.tokens) for segment in transcript.segments)
    usage = {
        "type": "tokens",
        "input_tokens": n_audio,
        "input_token_details": {"audio_tokens": n_audio, "text_tokens": 0},
        "output_tokens": n_text,
        "total_tokens": n_audio + n_text,
    }
    return {"type": "transcript.text.done", "text": text, "usage": usage, **_logprobs(tokens)}


Transcribe = Callable[[Callable[[Segment], None]], Coroutine[Any, Any, Transcript]]
ToTokens = Callable[[Segment], list[Token]]


class TranscriptStream:
    """Runs a transcription as a task and turns its segments into events.

    `to_tokens` adds log-probabilities; `labels` adds OpenAI's events for segments of speakers.
    """

    def __init__(
        self,
        transcribe: Transcribe,
        to_tokens: ToTokens | None,
        labels: SpeakerLabels | None = None,
        *,
        has_languages: bool = False,
    ) -> None:
        self._to_tokens, self._labels, self._has_languages = to_tokens, labels, has_languages
        self._tokens: list[Token] = []
        self._n_tokens_sent = 0
        self._segments: asyncio.Queue[Segment | None] = asyncio.Queue()
        self._text = TextAccumulator()
        self._task = asyncio.create_task(transcribe(self._segments.put_nowait))
        self._task.add_done_callback(lambda task: self._segments.put_nowait(None))
        self._first: bytes | None = None

    async def start(self) -> None:
        """Wait for the first text or the end; a failure before that is raised."""
        try:
            while (segment := await self._segments.get()) is not None:
                self._first = self._delta_event(segment)
                if self._first is not None:
                    return
            self._task.result()
            self._segments.put_nowait(None)
        except BaseException:
            await self.close()
            raise

    async def events(self) -> AsyncIterator[bytes]:
        if self._first is not None:
            yield self._first
        while (segment := await self._segments.get()) is not None:
            if (delta := self._delta_event(segment)) is not None:
                yield delta
        try:
            transcript = self._task.result()
            fields = _done_fields(transcript, self._text.text, self._tokens if self._to_tokens else None)
            yield event(fields | (_languages(transcript) if self._has_languages else {}))
        except ChoralError as error:
            yield event(error_fields(to_api_error(error)))
        yield END_OF_EVENTS

    def _delta_event(self, segment: Segment) -> bytes | None:
        """None for a blank segment, whose tokens go with the next."""
        if self._to_tokens is not None:
            self._tokens += self._to_tokens(segment)
        delta = self._text.add(segment.text)
        if not delta:
            return None
        tokens, self._n_tokens_sent = self._tokens[self._n_tokens_sent :], len(self._tokens)
        logprobs = _logprobs(tokens if self._to_tokens else None)
        fields = {"type": "transcript.text.delta", "delta": delta, **logprobs}
        if self._labels is None:
            return event(fields)
        of_segment = self._labels.segment_fields(segment)
        return event({**fields, "segment_id": of_segment["id"]}) + event(of_segment)

    async def close(self) -> None:
        await cancel_tasks([self._task])


class EventStreamResponse(Response):
    media_type = "text/event-stream"

    def __init__(self, stream: TranscriptStream) -> None:
        super().__init__(headers=EVENT_STREAM_HEADERS)
        del self.headers["content-length"]
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await cancel_on_disconnect(scope, receive, self._send_all(send))
        except ClientClosedRequest:
            return
        finally:
            await self._stream.close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._stream.events():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
