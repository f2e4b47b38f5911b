"""Liveness, readiness and Prometheus metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response

from choral.common.aio import cancel_tasks, run_in_thread
from choral.errors import ChoralError
from choral.server.service import Service

log = logging.getLogger("choral.server")
RETEST_S = 5.0
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
METRICS_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


class StatusBody(BaseModel):
    status: str
    reason: str | None = None
    failed_devices: dict[str, str] | None = None  # and why; the server is ready while another one works
    failed_models: dict[str, str] | None = None  # likewise


class Readiness:
    """Ready after a successful self-test and the start of session processes, while a model and all loops work and
    the server is not shutting down.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._has_passed = False
        self._error: str | None = None  # of the last self-test

    async def run_self_tests(self) -> None:
        """At start until one passes, and again while an engine fails: without requests, only a test can end that."""
        models = self._service.models
        while True:
            if not self._has_passed:
                await self.self_test(models.names.default)
            for entry in models.entries:
                if entry.loaded is not None and not entry.loaded.model.is_working:
                    await self.self_test(entry.info.id)
            await asyncio.sleep(RETEST_S)

    async def self_test(self, model: str) -> None:
        """Decode noise with the engine of a model, which is loaded first if need be, and not unloaded meanwhile."""
        try:
            async with self._service.models.use(model) as loaded:
                await run_in_thread(loaded.model.self_test, "self-test")
        except ChoralError as error:
            if self._error is None:  # once, not at every retest
                log.exception("the self-test failed: the server is not ready until one passes")
            self._error = str(error)
        else:
            self._has_passed, self._error = True, None

    @property
    def status(self) -> str:
        if self._service.requests.is_closing:
            return "stopping"
        if self._service.models.failure or self._service.loops.failure:
            return "failed"
        if self._has_passed:
            return "ready" if self._service.realtime.has_started else "starting"
        return "failed" if self._error else "starting"

    @property
    def reason(self) -> str | None:
        """Why the server has failed."""
        return self._service.models.failure or self._service.loops.failure or self._error


def make_router(service: Service) -> APIRouter:
    readiness = Readiness(service)

    @asynccontextmanager
    async def run_self_test(app: object) -> AsyncIterator[None]:
        test = service.loops.start(readiness.run_self_tests(), "the self-test")
        yield
        await cancel_tasks([test])

    router = APIRouter(tags=["operation"], lifespan=run_self_test)

    @router.get("/health/live", summary="Whether the server runs", response_model_exclude_none=True)
    async def live() -> StatusBody:
        return StatusBody(status="live")

    @router.get("/health", include_in_schema=False, response_model_exclude_none=True)  # the name that many clients use
    @router.get(
        "/health/ready",
        summary="Whether the server accepts requests",
        response_model_exclude_none=True,
        responses={503: {"model": StatusBody, "description": "starting, failed or stopping"}},
    )
    async def ready(response: Response) -> StatusBody:
        status = readiness.status
        response.status_code = 200 if status == "ready" else 503
        reason = readiness.reason if status == "failed" else None
        models = service.models
        return StatusBody(
            status=status,
            reason=reason,
            failed_devices=models.failed_devices or None,
            failed_models=models.failed_models or None if status == "ready" else None,
        )

    @router.get("/metrics", summary="Metrics for Prometheus", response_model=None, responses=METRICS_RESPONSE)
    async def metrics() -> Response:
        # On a thread: the engine may be in another process, which must answer.
        return PlainTextResponse(await run_in_thread(service.metrics.render, "metrics"), media_type=PROMETHEUS)

    return router
