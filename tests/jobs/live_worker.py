"""A real worker in this process, on a thread with an event loop of its own, and a receiver of webhooks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import choral
from choral.audio.prep.pool import PrepPool
from choral.jobs import WorkerSettings
from choral.jobs.job_queue import JobQueue
from choral.jobs.metrics import WorkerMetrics
from choral.jobs.redis_connection import connect, redact_redis_url
from choral.jobs.redis_keys import RedisKeys
from choral.jobs.worker import Worker

SECRET = "s3cret"


class LiveWorker:
    def __init__(self, url: str, model: choral.Model, pool: PrepPool, is_burst: bool, **settings: object) -> None:
        self.metrics = WorkerMetrics()
        self._url, self._model, self._pool, self._is_burst = url, model, pool, is_burst
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
        """Until it has ended by itself."""
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
            store = JobQueue(redis, RedisKeys())
            shown = redact_redis_url(self._url)
            worker = Worker(
                store, self._model, self._pool, self._settings,
                shown=shown, webhook_secret=SECRET, metrics=self.metrics,
            )  # fmt: skip
            self._worker = worker
            await worker.run(is_burst=self._is_burst)


@contextlib.contextmanager
def working(
    url: str, model: choral.Model, pool: PrepPool, *, is_burst: bool = False, **settings: object
) -> Iterator[LiveWorker]:
    worker = LiveWorker(url, model, pool, is_burst, **settings)
    try:
        yield worker
    finally:
        worker.stop()
        worker.join()


def wait_until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.02)


@dataclass(frozen=True)
class Delivery:
    key: str
    signature: str
    body: bytes


@dataclass
class Receiver:
    """Answers with these statuses first, one a request, then with 200."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    delay_s: float = 0.0
    deliveries: list[Delivery] = field(default_factory=list)


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            key, signature = (self.headers.get(name, "") for name in ("Idempotency-Key", "Choral-Signature"))
            receiver.deliveries.append(Delivery(key, signature, body))
            time.sleep(receiver.delay_s)
            with contextlib.suppress(ConnectionError):
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{http.server_port}/done"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield receiver
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
