"""Liveness, readiness and Prometheus metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response

from choral.audio.constants import SAMPLE_RATE
from choral.common.aio import cancel_tasks, run_in_thread
from choral.errors import ChoralError
from choral.server.service import Service
from choral.types import TranscribeOptions

log = logging.getLogger("choral.server")
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
METRICS_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


class StatusBody(BaseModel):
    status: str


class Readiness:
    """Ready after a successful self-test, while the engine works and the server is not shutting down."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._has_passed = False

    async def self_test(self) -> None:
        """Transcribe one second of noise with the engine."""
        noise = (np.random.default_rng(0).standard_normal(SAMPLE_RATE) * 0.05).astype(np.float32)
        options = TranscribeOptions(language="en", temperature=0.0, max_tokens=1)
        try:
            await run_in_thread(lambda: self._service.model.transcribe(noise, options), "self-test")
        except ChoralError:
            log.exception("the self-test failed: the server does not become ready")
        else:
            self._has_passed = True

    @property
    def status(self) -> str:
        if self._service.requests.is_closing:
            return "stopping"
        if not self._service.model.is_working:
            return "failed"
        return "ready" if self._has_passed else "starting"


def make_router(service: Service) -> APIRouter:
    readiness = Readiness(service)

    @asynccontextmanager
    async def run_self_test(app: object) -> AsyncIterator[None]:
        test = asyncio.create_task(readiness.self_test())
        yield
        await cancel_tasks([test])

    router = APIRouter(tags=["operation"], lifespan=run_self_test)

    @router.get("/health/live", summary="Whether the server runs")
    async def live() -> StatusBody:
        return StatusBody(status="live")

    @router.get(
        "/health/ready",
        summary="Whether the server accepts requests",
        responses={503: {"model": StatusBody, "description": "starting, failed or stopping"}},
    )
    async def ready(response: Response) -> StatusBody:
        status = readiness.status
        response.status_code = 200 if status == "ready" else 503
        return StatusBody(status=status)

    @router.get("/metrics", summary="Metrics for Prometheus", response_model=None, responses=METRICS_RESPONSE)
    async def metrics() -> Response:
        return PlainTextResponse(service.metrics.render(), media_type=PROMETHEUS)

    return router
