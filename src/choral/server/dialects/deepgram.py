"""Deepgram's recordings: `POST /v1/listen` with the audio as the body, or its URL in JSON. The query has the options.

Whisper writes punctuation and numerals by itself, so `punctuate` and `smart_format` have no effect. `redact`, on which
somebody's privacy may depend, is refused rather than left out.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from choral.common.aio import close_in_thread
from choral.options import TranscribeOptions
from choral.server.api_errors import ApiError
from choral.server.decoding_fields import MAX_KEYWORDS, Keyword
from choral.server.dialects.deepgram_json import listen_fields
from choral.server.dialects.dialect_request import (
    LenientFields,
    add_route,
    query_parameters,
    read_fields,
    transcribe_for,
)
from choral.server.dialects.headerless import Encoding, RawFormat, with_wav_header
from choral.server.forms import HttpUrl, SpokenLanguage, to_options, validate_json
from choral.server.request_warnings import add_warnings
from choral.server.responses import json_response
from choral.server.service import Service
from choral.server.speech_form import MAX_PROMPT_CHARACTERS, Text
from choral.server.tracing import span
from choral.server.upload import content_type, read_body
from choral.serving.input_sources import OpenFile

LISTEN = "/v1/listen"
MODEL_FAMILIES = re.compile(r"(nova|enhanced|base|whisper|flux)\b")  # Deepgram's; each is the default model
REFUSED = ("callback", "callback_method", "redact")
MAX_URL_BYTES = 64 * 1024


class ListenFields(LenientFields):
    model: Text | None = Field(None, description="any of Deepgram's names, or one from GET /v1/models")
    language: SpokenLanguage = Field(None, description="detected when not given")
    detect_language: bool = False
    punctuate: bool = Field(True, description="always done")
    smart_format: bool = Field(True, description="always done, as far as the model does it")
    diarize: bool = False
    utterances: bool = False
    multichannel: bool = Field(False, description="transcribe each channel by itself")
    keywords: list[Keyword] = Field([], max_length=MAX_KEYWORDS)
    keyterm: list[Keyword] = Field([], max_length=MAX_KEYWORDS)
    encoding: Encoding | None = Field(None, description="of headerless audio")
    sample_rate: int = Field(16_000, ge=1_000, le=192_000, description="of headerless audio")
    channels: int = Field(1, ge=1, le=32, description="of headerless audio")

    @property
    def hotwords(self) -> tuple[str, ...]:
        return (*self.keyterm, *(re.sub(r":[-\d.]+$", "", keyword) for keyword in self.keywords))

    def options(self) -> TranscribeOptions:
        return to_options(
            language=None if self.detect_language else self.language,
            hotwords=self.hotwords or None,
            diarize=self.diarize,
            channels="split" if self.multichannel else "mix",
            word_timestamps=True,
        )

    @property
    def raw_format(self) -> RawFormat | None:
        return None if self.encoding is None else RawFormat(self.encoding, self.sample_rate, self.channels)


class UrlBody(LenientFields):
    url: Annotated[HttpUrl, Field(max_length=MAX_PROMPT_CHARACTERS)] = Field(description="the URL of the audio")


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["Deepgram"])
    content = {
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        "application/json": {"schema": UrlBody.model_json_schema()},
    }
    openapi = {"requestBody": {"required": True, "content": content}, "parameters": query_parameters(ListenFields)}
    add_route(router, service, LISTEN, _listen, "Transcribe speech", openapi)
    return router


async def _listen(service: Service, request: Request) -> Response:
    fields, warnings = read_fields(ListenFields, query_pairs(request))
    model = served_model(service, fields.model)
    service.requests.require_capacity()
    async with AsyncExitStack() as stack:
        with service.uploads.admit_upload() as slot, span("read the upload"):
            body = await stack.enter_async_context(read_body(request, service.settings, slot))
        audio: OpenFile | str = body
        if content_type(request) == "application/json":
            audio = validate_json(UrlBody, body.file.read(MAX_URL_BYTES)).url
        elif fields.raw_format is not None:
            audio = await asyncio.to_thread(with_wav_header, body, fields.raw_format)
            stack.callback(close_in_thread, audio.file)
        param = "url" if isinstance(audio, str) else "file"
        transcript = await transcribe_for(service, request, audio, fields.options(), audio_param=param, model=model)
        sha256 = await asyncio.to_thread(_sha256, body)
    language = transcript.language if fields.detect_language else None
    answer = listen_fields(transcript, model, sha256, language, has_utterances=fields.utterances)
    return add_warnings(json_response(answer), warnings)


def query_pairs(connection: HTTPConnection) -> list[tuple[str, str]]:
    """The query, unless it asks for what is refused."""
    pairs = [pair for pair in connection.query_params.multi_items() if pair != ("language", "multi")]  # detected
    if refused := [name for name, text in pairs if name in REFUSED and text != "false"]:
        raise ApiError(f"`{refused[0]}` is not supported here: omit it", param=refused[0], code="unsupported_value")
    return pairs


def served_model(service: Service, name: str | None) -> str:
    """The model of this server that is meant; Deepgram's own names stand for the default one."""
    is_foreign = name is not None and name not in service.names.targets and MODEL_FAMILIES.match(name)
    return service.names.resolve(None if is_foreign else name)


def _sha256(body: OpenFile) -> str:
    body.file.seek(0)
    return hashlib.file_digest(body.file, "sha256").hexdigest()  # type: ignore[arg-type]
