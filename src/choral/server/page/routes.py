"""The page and what it loads, all from this server, and the engine's numbers in JSON.

Nothing on the page may come from another host, and no script but its own files runs: the headers say so to browsers.
"""

from __future__ import annotations

import time
from pathlib import Path

from fastapi import APIRouter
from prometheus_client import Counter
from starlette.responses import FileResponse, JSONResponse, Response

from choral.model.languages import CODES
from choral.server.api_errors import ApiError
from choral.server.openapi import ERROR, REFUSALS
from choral.server.service import Service

STATIC = Path(__file__).parent / "static"
FILES = {file.name: file for file in STATIC.iterdir()}  # the only ones there are: no path is ever made of a request
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
    "Cache-Control": "no-cache",  # asked for again with its ETag: a new version of the server brings its own page
}
ENGINE = {
    "type": "object",
    "required": ["at", "model", "slots", "waiting", "requests", "decoder_steps", "decoder_rows", "audio_s", "busy_s"],
}


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["page"])

    @router.get("/", include_in_schema=False)
    async def page() -> Response:
        return _file("index.html")

    @router.get("/page/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in FILES:
            raise ApiError(f"/page/{name[:100]} does not exist", status=404, code="not_found")
        return _file(name)

    refused = {"description": REFUSALS["401"], "content": {"application/json": {"schema": ERROR}}}
    answer = {"description": "counters", "content": {"application/json": {"schema": ENGINE}}}

    @router.get(
        "/v1/engine",
        summary="The engine's counters: what they did between two looks is how busy it is",
        response_model=None,
        responses={"200": answer, "401": refused},
    )
    async def engine() -> Response:
        return JSONResponse(engine_fields(service))

    return router


def engine_fields(service: Service) -> dict[str, object]:
    model, stats = service.model, service.model.stats
    facts = {
        "name": service.model_id,
        "engine": model.engine,
        "device": model.device,
        "compute_type": model.compute_type,
        "languages": list(CODES) if model.is_multilingual else ["en"],
    }
    return {
        "at": time.time(),
        "model": facts,
        "slots": model.n_slots,
        "waiting": stats.waiting,
        "requests": service.requests.n_active,
        "windows": stats.windows,
        "encoder_steps": stats.encoder_steps,
        "encoded": stats.encoded,
        "cache_hits": stats.cache_hits,
        "decoder_steps": stats.steps,
        "decoder_rows": stats.rows,
        "busy_s": stats.busy_s,
        "audio_s": _value(service.metrics.audio_s),
    }


def _value(counter: Counter) -> float:
    [metric] = counter.collect()
    return metric.samples[0].value


def _file(name: str) -> Response:
    file = FILES[name]
    return FileResponse(file, media_type=MEDIA_TYPES[file.suffix], headers=HEADERS)
