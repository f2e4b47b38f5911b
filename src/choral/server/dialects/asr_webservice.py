"""whisper-asr-webservice: `POST /asr` and `POST /detect-language`, which Bazarr and many scripts use.

With `encode=false` the audio is headerless: 16-bit samples at 16 kHz, mono.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import quote

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from choral import formats
from choral.common.aio import close_in_thread
from choral.model.languages import NAMES
from choral.options import MAX_SPEAKERS, Task, TranscribeOptions
from choral.server.dialects.dialect_request import (
    LenientFields,
    add_route,
    file_form,
    only_file,
    query_parameters,
    read_fields,
    received_form,
    transcribe_for,
)
from choral.server.dialects.headerless import RawFormat, with_wav_header
from choral.server.forms import SpokenLanguage, to_options
from choral.server.request_warnings import add_warnings
from choral.server.responses import json_response
from choral.server.service import Service
from choral.server.speech_form import Text
from choral.serving.input_sources import OpenFile
from choral.transcript import Transcript

ASR, DETECT_LANGUAGE = "/asr", "/detect-language"
AUDIO = "audio_file"
DETECTED_S = 30.0  # a window, as whisper-asr-webservice takes it
RAW = RawFormat("linear16", 16_000, 1)
FORMATS = {"txt": "text", "vtt": "vtt", "srt": "srt", "tsv": "tsv"}


class DetectFields(LenientFields):
    encode: bool = Field(True, description="false: the audio is headerless, 16-bit samples at 16 kHz in mono")


class AsrFields(DetectFields):
    task: Task = "transcribe"
    language: SpokenLanguage = None
    initial_prompt: Text | None = None
    output: Literal["txt", "vtt", "srt", "tsv", "json"] = "txt"
    word_timestamps: bool = False
    vad_filter: bool | None = None
    diarize: bool = False
    min_speakers: int | None = Field(None, ge=1, le=MAX_SPEAKERS)
    max_speakers: int | None = Field(None, ge=1, le=MAX_SPEAKERS)

    def options(self) -> TranscribeOptions:
        values: dict[str, Any] = {
            "language": self.language,
            "initial_prompt": self.initial_prompt,
            "vad": self.vad_filter,
        }
        if self.diarize and (self.min_speakers or self.max_speakers):
            values["speakers"] = (self.min_speakers or 1, self.max_speakers or MAX_SPEAKERS)
        given = {name: value for name, value in values.items() if value is not None}
        return to_options(task=self.task, word_timestamps=self.word_timestamps, diarize=self.diarize, **given)


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["whisper-asr-webservice"])
    for path, answer, summary, fields in (
        (ASR, _transcribe, "Transcribe speech", AsrFields),
        (DETECT_LANGUAGE, _detect_language, "Detect the language of the first 30 s", DetectFields),
    ):
        openapi = {**file_form(AUDIO), "parameters": query_parameters(fields)}
        add_route(router, service, path, answer, summary, openapi)
    return router


@asynccontextmanager
async def _received(service: Service, request: Request, *, is_encoded: bool) -> AsyncIterator[OpenFile]:
    async with received_form(service, request) as form:
        audio = sent = only_file(form, AUDIO)
        if not is_encoded:
            audio = await asyncio.to_thread(with_wav_header, sent, RAW)
        try:
            yield audio
        finally:
            if audio is not sent:
                close_in_thread(audio.file)


async def _transcribe(service: Service, request: Request) -> Response:
    fields, warnings = read_fields(AsrFields, request.query_params.multi_items())
    async with _received(service, request, is_encoded=fields.encode) as audio:
        transcript = await transcribe_for(service, request, audio, fields.options(), audio_param=AUDIO)
    text = await asyncio.to_thread(_render, transcript, fields.output)
    headers = {
        "Asr-Engine": "choral",
        "Content-Disposition": f'attachment; filename="{quote(audio.name)}.{fields.output}"',
    }
    response = Response(text, media_type="text/plain; charset=utf-8", headers=headers)  # json too: so does the original
    return add_warnings(response, warnings)


def _render(transcript: Transcript, output: str) -> str:
    if output in FORMATS:
        return formats.render(transcript, FORMATS[output])
    segments = [formats.segment_fields(segment) for segment in transcript.segments]
    fields = {"text": transcript.text, "segments": segments, "language": transcript.language}
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)


async def _detect_language(service: Service, request: Request) -> Response:
    fields, warnings = read_fields(DetectFields, request.query_params.multi_items())
    options = to_options(  # one token: the language is all that is wanted
        mode="sequential", clip_timestamps=(0.0, DETECTED_S), max_tokens=1, timestamps=False, temperature=0.0
    )
    async with _received(service, request, is_encoded=fields.encode) as audio:
        found = await transcribe_for(service, request, audio, options, audio_param=AUDIO, max_charged_s=DETECTED_S)
    body = {
        "detected_language": NAMES.get(found.language, found.language),
        "language_code": found.language,
        "confidence": found.language_probability or 0.0,
    }
    return add_warnings(json_response(body), warnings)
