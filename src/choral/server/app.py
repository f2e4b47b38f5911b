"""The FastAPI application: all routers, the middleware and the error handlers.

Each part of the server is a function in `ROUTERS` that takes the `Service` and returns a router.
"""

from __future__ import annotations

from collections.abc import Callable

from choral import __version__
from choral.errors import MissingDependency

try:
    import python_multipart  # noqa: F401  reads forms
    import uvicorn  # noqa: F401
    import websockets  # noqa: F401  carries live audio
    from fastapi import APIRouter, FastAPI
    from fastapi.middleware.cors import CORSMiddleware
except ImportError as missing:
    raise MissingDependency(f"the server needs the package {missing.name}: pip install 'choral[server]'") from missing

from choral.server import alignments, diarization_route, health, model_routes, openai
from choral.server.api_errors import add_error_handlers
from choral.server.api_keys import ApiKeyStore
from choral.server.cross_site import CrossSitePolicy
from choral.server.dialects import asr_webservice, deepgram_live, whisper_cpp
from choral.server.direct_route import DirectRoutes
from choral.server.jobs import routes as job_routes
from choral.server.jobs.job_store import JobStore
from choral.server.middleware import RequestMiddleware
from choral.server.page import routes as page_routes
from choral.server.quota import KeyQuotas
from choral.server.realtime import client_secret_routes
from choral.server.realtime import routes as realtime_routes
from choral.server.service import Service
from choral.server.settings import Dialect
from choral.server.tracing import Tracing

MakeRouter = Callable[[Service], APIRouter]
ROUTERS: tuple[MakeRouter, ...] = (
    openai.make_router,
    model_routes.make_router,
    alignments.make_router,
    diarization_route.make_router,
    realtime_routes.make_router,
    client_secret_routes.make_router,
    health.make_router,
    page_routes.make_router,
)
DIALECT_ROUTERS: dict[Dialect, MakeRouter] = {
    "asr": asr_webservice.make_router,
    "whisper-cpp": whisper_cpp.make_router,
    "deepgram": deepgram_live.make_router,
}
EXPOSED_HEADERS = ("x-request-id", "retry-after", "warning")


def create_app(
    service: Service,
    keys: ApiKeyStore | None = None,
    jobs: JobStore | None = None,
    quotas: KeyQuotas | None = None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The routes for jobs exist if there is a job store, which must be open."""
    app = FastAPI(
        title="Choral",
        version=__version__,
        description="Speech to text with Whisper models: many voices, one pass.",
        docs_url=None,  # its page loads assets from another host
        redoc_url=None,
    )
    dialects = [make_router for dialect, make_router in DIALECT_ROUTERS.items() if service.settings.speaks(dialect)]
    direct_routes = DirectRoutes()
    for make_router in (*ROUTERS, *dialects):
        app.include_router(direct_routes.add(make_router(service)))
    if jobs is not None:
        app.include_router(job_routes.make_router(service, jobs))
    add_error_handlers(app)
    keys = keys or ApiKeyStore()
    app.add_middleware(
        RequestMiddleware,
        cross_site=CrossSitePolicy.of(service.settings, has_keys=keys.is_required),
        keys=keys,
        client_secrets=service.realtime.client_secrets,
        quotas=quotas or KeyQuotas(),
        metrics=service.metrics,
        tracing=tracing,
        direct_routes=direct_routes,
    )
    if service.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=list(EXPOSED_HEADERS),
        )
    return app
