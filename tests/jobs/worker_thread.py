"""A real worker in this process, on a thread with its own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import choral
from choral.jobs import WorkerSettings
from choral.jobs.job_queue import JobQueue
from choral.jobs.metrics import WorkerMetrics
from choral.jobs.redis_connection import connect, redact_redis_url
from choral.jobs.redis_keys import RedisKeys
from choral.jobs.worker import Worker
from choral.serving.runtime import Runtime

SECRET = "s3cret"


class WorkerThread:
    def __init__(
        self, url: str, model: choral.Model, runtime: Runtime, is_burst: bool, secret: str, **settings: object
    ) -> None:
        self.metrics = WorkerMetrics()
        self._url, self._model, self._runtime, self._is_burst, self._secret = url, model, runtime, is_burst, secret
        self._settings = WorkerSettings(**{"retry_s": 0.05, "webhook_retry_s": 0.05, **settings})  # type: ignore[arg-type]
        self._loop = asyncio.new_event_loop()
        self._worker: Worker | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        while self._worker is None and self._thread.is_alive():
            time.sleep(0.01)
        if self._worker is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._worker.stop)

    def join(self, timeout_s: float = 60.0) -> None:
        """Wait until it has ended, and raise its error."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the worker does not end"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._loop.close()

    async def _main(self) -> None:
        async with connect(self._url) as redis:
            worker = Worker(
                JobQueue(redis, RedisKeys()),
                self._model,
                self._runtime,
                self._settings,
                redis_address=redact_redis_url(self._url),
                webhook_secret=self._secret,
                metrics=self.metrics,
            )
            self._worker = worker
            await worker.run(is_burst=self._is_burst)


@contextlib.contextmanager
def running_worker(
    url: str,
    model: choral.Model,
    runtime: Runtime,
    *,
    is_burst: bool = False,
    secret: str = SECRET,
    **settings: object,
) -> Iterator[WorkerThread]:
    worker = WorkerThread(url, model, runtime, is_burst, secret, **settings)
    try:
        yield worker
    finally:
        worker.stop()
        worker.join()


def wait_until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        time.sleep(0.02)
