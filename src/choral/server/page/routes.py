"""The web page with its assets, and the engine's counters as JSON for it.

The page loads nothing from other hosts and runs no scripts but its own files: the security headers enforce both.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from prometheus_client import Counter
from pydantic import BaseModel
from starlette.responses import FileResponse, Response

from choral.common.aio import run_in_thread
from choral.model.languages import CODES
from choral.server.api_errors import ApiError, error_responses
from choral.server.service import Service

STATIC = Path(__file__).parent / "static"
FILES = {file.name: file for file in STATIC.iterdir()}  # a request can only name one of these: no path is built from it
UNLOADED = "unloaded"  # until the next request
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "media-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # revalidated by ETag, so that a new server version brings its own page
}


class EngineModelBody(BaseModel):
    name: str
    engine: str
    device: str
    compute_type: str
    languages: list[str]


class EngineBody(BaseModel):
    """Counters of all loaded models; the difference of two readings gives the load between them."""

    at: float  # seconds since 1970
    model: EngineModelBody  # the default one
    models: list[str]
    slots: int
    waiting: int
    requests: int
    windows: int
    encoder_steps: int
    encoded: int
    cache_hits: int
    decoder_steps: int
    decoder_rows: int
    busy_s: float
    audio_s: float


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["page"])

    @router.get("/", include_in_schema=False)
    async def page() -> Response:
        return _file("index.html")

    @router.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return _file("docs.html")

    @router.get("/page/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in FILES:
            raise ApiError(f"/page/{name[:100]} does not exist", status=404, code="not_found")
        return _file(name)

    @router.get("/v1/engine", summary="Counters of the engine since its start", responses=error_responses(401))
    async def engine() -> EngineBody:
        return await run_in_thread(lambda: engine_body(service), "engine-stats")  # of another process, perhaps

    return router


def engine_body(service: Service) -> EngineBody:
    loaded = service.models.loaded
    stats = [each.model.stats for each in loaded]

    def total(name: str) -> Any:
        return sum(getattr(each, name) for each in stats)

    return EngineBody(
        at=time.time(),
        model=_model_body(service),
        models=list(service.names.model_ids),
        slots=sum(each.model.n_slots for each in loaded),
        waiting=total("waiting"),
        requests=service.requests.n_active,
        windows=total("windows"),
        encoder_steps=total("encoder_steps"),
        encoded=total("encoded"),
        cache_hits=total("cache_hits"),
        decoder_steps=total("steps"),
        decoder_rows=total("rows"),
        busy_s=total("busy_s"),
        audio_s=_value(service.metrics.audio_s),
    )


def _model_body(service: Service) -> EngineModelBody:
    """The default model, with the engine of one that is loaded."""
    info = service.models.info()
    loaded = sorted(service.models.loaded, key=lambda each: each.id != info.id)
    engine = loaded[0].model if loaded else None
    return EngineModelBody(
        name=info.id,
        engine=engine.engine if engine else UNLOADED,
        device=engine.device if engine else UNLOADED,
        compute_type=engine.compute_type if engine else UNLOADED,
        languages=list(CODES) if info.is_multilingual else ["en"],
    )


def _value(counter: Counter) -> float:
    """Of all models."""
    [metric] = counter.collect()
    return sum(sample.value for sample in metric.samples if sample.name.endswith("_total"))


def _file(name: str) -> Response:
    file = FILES[name]
    return FileResponse(file, media_type=MEDIA_TYPES[file.suffix], headers=HEADERS)
