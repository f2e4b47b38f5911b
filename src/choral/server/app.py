"""The application: the routers of every part behind one error boundary."""

from __future__ import annotations

from collections.abc import Callable

from choral.errors import MissingDependency
from choral.server.service import Service

try:
    from fastapi import APIRouter, FastAPI
except ImportError as missing:
    raise MissingDependency("the server needs the package fastapi: pip install 'choral[server]'") from missing

MakeRouter = Callable[[Service], APIRouter]
ROUTERS: tuple[MakeRouter, ...] = ()


def create_app(service: Service) -> FastAPI:
    app = FastAPI(title="Choral", description="Speech to text with Whisper models: many voices, one pass.")
    for make_router in ROUTERS:
        app.include_router(make_router(service))
    return app
