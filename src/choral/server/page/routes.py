"""The web page with its assets, and the engine's counters as JSON for it.

The page loads nothing from other hosts and runs no scripts but its own files: the security headers enforce both.
"""

from __future__ import annotations

import time
from pathlib import Path

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
    """Counters since the start; the difference of two readings gives the load between them."""

    at: float  # seconds since 1970
    model: EngineModelBody
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
    model, stats = service.model, service.model.stats
    return EngineBody(
        at=time.time(),
        model=EngineModelBody(
            name=service.model_id,
            engine=model.engine,
            device=model.device,
            compute_type=model.compute_type,
            languages=list(CODES) if model.is_multilingual else ["en"],
        ),
        slots=model.n_slots,
        waiting=stats.waiting,
        requests=service.requests.n_active,
        windows=stats.windows,
        encoder_steps=stats.encoder_steps,
        encoded=stats.encoded,
        cache_hits=stats.cache_hits,
        decoder_steps=stats.steps,
        decoder_rows=stats.rows,
        busy_s=stats.busy_s,
        audio_s=_value(service.metrics.audio_s),
    )


def _value(counter: Counter) -> float:
    [metric] = counter.collect()
    return metric.samples[0].value


def _file(name: str) -> Response:
    file = FILES[name]
    return FileResponse(file, media_type=MEDIA_TYPES[file.suffix], headers=HEADERS)
