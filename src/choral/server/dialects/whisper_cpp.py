"""whisper.cpp's server: `POST /inference`, and `POST /load`, which answers for the model that is served."""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from choral import formats
from choral.model.languages import NAMES
from choral.options import TranscribeOptions
from choral.server.api_errors import ApiError
from choral.server.dialects.dialect_request import (
    LenientFields,
    add_route,
    file_form,
    only_file,
    read_fields,
    received_form,
    transcribe_for,
)
from choral.server.forms import MAX_SHOWN_CHARACTERS, SpokenLanguage, to_options
from choral.server.request_warnings import add_warnings
from choral.server.responses import MEDIA_TYPES, json_response
from choral.server.service import Service
from choral.server.speech_form import Text
from choral.transcript import Transcript

INFERENCE, LOAD = "/inference", "/load"
AUDIO = "file"
MAX_TEMPERATURE, MIN_TEMPERATURE_STEP = 1.0, 0.1
Format = Literal["json", "text", "srt", "vtt", "verbose_json"]


class InferenceFields(LenientFields):
    response_format: Format = "json"
    language: SpokenLanguage = None
    translate: bool = False
    prompt: Text | None = None
    temperature: float = Field(0.0, ge=0, le=MAX_TEMPERATURE)
    temperature_inc: float = Field(0.2, ge=0, le=MAX_TEMPERATURE)
    no_timestamps: bool = False
    beam_size: int | None = Field(None, le=64, description="below 1: greedy")
    best_of: int | None = Field(None, le=64)
    vad: bool | None = None
    offset_t: int = Field(0, ge=0, le=2**31, description="start, in milliseconds")
    duration: int = Field(0, ge=0, le=2**31, description="of what is transcribed, in milliseconds; 0: up to the end")

    def options(self) -> TranscribeOptions:
        values: dict[str, Any] = {
            "language": self.language,
            "initial_prompt": self.prompt,
            "beam_size": None if self.beam_size is None else max(1, self.beam_size),
            "best_of": None if self.best_of is None else max(1, self.best_of),
            "vad": self.vad,
            "clip_timestamps": self._clip(),
        }
        return to_options(
            task="translate" if self.translate else "transcribe",
            temperature=self._temperatures(),
            timestamps=not self.no_timestamps,
            word_timestamps=self.response_format == "verbose_json" and not self.no_timestamps,
            **{name: value for name, value in values.items() if value is not None},
        )

    def _temperatures(self) -> tuple[float, ...]:
        if not self.temperature_inc:
            return (self.temperature,)
        step = max(self.temperature_inc, MIN_TEMPERATURE_STEP)
        n_steps = int((MAX_TEMPERATURE - self.temperature) / step + 1e-6)
        return tuple(round(self.temperature + i * step, 6) for i in range(n_steps + 1))

    def _clip(self) -> tuple[float, ...] | None:
        if not (self.offset_t or self.duration):
            return None
        start_s = self.offset_t / 1000
        return (start_s, start_s + self.duration / 1000) if self.duration else (start_s,)


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["whisper.cpp"])
    add_route(router, service, INFERENCE, _infer, "Transcribe speech", file_form(AUDIO, InferenceFields))
    model = {"type": "object", "required": ["model"], "properties": {"model": {"type": "string"}}}
    body = {"required": True, "content": {"multipart/form-data": {"schema": model}}}
    add_route(router, service, LOAD, _load, "Whether this model is served", {"requestBody": body})
    return router


async def _infer(service: Service, request: Request) -> Response:
    async with received_form(service, request) as form:
        fields, warnings = read_fields(InferenceFields, form.fields)
        audio = only_file(form, AUDIO)
        transcript = await transcribe_for(service, request, audio, fields.options(), audio_param=AUDIO)
    return add_warnings(await asyncio.to_thread(_response, transcript, fields.response_format), warnings)


def _response(transcript: Transcript, name: Format) -> Response:
    if name == "json":
        return json_response({"text": formats.text(transcript)})
    if name == "verbose_json":
        return json_response(_verbose_fields(transcript))
    return Response(formats.render(transcript, name), media_type=f"{MEDIA_TYPES[name]}; charset=utf-8")


def _verbose_fields(transcript: Transcript) -> dict[str, Any]:
    """Words are in their segments, as whisper.cpp has them."""
    fields = formats.verbose_fields(transcript)
    fields.pop("words", None)
    fields["text"] = formats.text(transcript)
    if transcript.language_probability is not None:
        fields["detected_language"] = NAMES.get(transcript.language, transcript.language)
        fields["detected_language_probability"] = transcript.language_probability
    return fields


async def _load(service: Service, request: Request) -> Response:
    """The name of a model, or a path such as `models/ggml-base.en.bin`."""
    async with received_form(service, request) as form:
        path = dict(form.fields).get("model", "")
    name = PurePosixPath(path.replace("\\", "/")).name.removeprefix("ggml-").removesuffix(".bin")
    if not {path, name} & set(service.names.all):
        shown = path[:MAX_SHOWN_CHARACTERS]
        served = ", ".join(service.names.model_ids)
        text = f"{shown!r} cannot be loaded: this server serves {served} only; start another one for it"
        raise ApiError(text, status=404, param="model", code="model_not_found")
    return PlainTextResponse("Load was successful!")
