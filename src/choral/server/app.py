"""The application: the routers of every part behind one door and one error boundary.

A part of the server is a function that takes the `Service` and gives a router; it stands in `ROUTERS`.
"""

from __future__ import annotations

from collections.abc import Callable

from choral import __version__
from choral.errors import MissingDependency

try:
    import python_multipart  # noqa: F401  forms are read with it
    import uvicorn  # noqa: F401
    import websockets  # noqa: F401  live audio comes over it
    from fastapi import APIRouter, FastAPI
    from fastapi.middleware.cors import CORSMiddleware
except ImportError as missing:
    raise MissingDependency(f"the server needs the package {missing.name}: pip install 'choral[server]'") from missing

from choral.server import health, openai
from choral.server.api_errors import add_error_handlers
from choral.server.api_keys import ApiKeyStore
from choral.server.jobs import routes as job_routes
from choral.server.jobs.job_store import JobStore
from choral.server.middleware import RequestMiddleware
from choral.server.page import routes as page_routes
from choral.server.quota import KeyQuotas
from choral.server.realtime import routes as realtime_routes
from choral.server.service import Service
from choral.server.tracing import Tracing

MakeRouter = Callable[[Service], APIRouter]
ROUTERS: tuple[MakeRouter, ...] = (
    openai.make_router,
    realtime_routes.make_router,
    health.make_router,
    page_routes.make_router,
)
HEADERS_SHOWN = ("x-request-id", "retry-after")


def create_app(
    service: Service,
    keys: ApiKeyStore | None = None,
    jobs: JobStore | None = None,
    quotas: KeyQuotas | None = None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """With a store of jobs, which is open already, there are the routes for jobs too."""
    app = FastAPI(
        title="Choral",
        version=__version__,
        description="Speech to text with Whisper models: many voices, one pass.",
        docs_url=None,  # its page would load assets from another host
        redoc_url=None,
    )
    for make_router in ROUTERS:
        app.include_router(make_router(service))
    if jobs is not None:
        app.include_router(job_routes.make_router(service, jobs))
    add_error_handlers(app)
    app.add_middleware(
        RequestMiddleware,
        keys=keys or ApiKeyStore(),
        quotas=quotas or KeyQuotas(),
        metrics=service.metrics,
        tracing=tracing,
    )
    if service.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=list(HEADERS_SHOWN),
        )
    return app
