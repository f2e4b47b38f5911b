"""`Client`: the blocking client. It runs an `AsyncClient` in an event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import functools
import threading
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from choral.common.aio import cancel_tasks
from choral.jobs.client import AsyncClient
from choral.jobs.settings import ClientSettings

T = TypeVar("T")
P = ParamSpec("P")


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._client, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class Client:
    """Thread-safe. Use it in a `with`, or close it. The methods are those of `AsyncClient`."""

    submit = _blocking(AsyncClient.submit)
    show = _blocking(AsyncClient.show)
    show_all = _blocking(AsyncClient.show_all)
    result = _blocking(AsyncClient.result)
    wait = _blocking(AsyncClient.wait)
    wait_all = _blocking(AsyncClient.wait_all)
    cancel = _blocking(AsyncClient.cancel)
    retry = _blocking(AsyncClient.retry)
    delete = _blocking(AsyncClient.delete)
    list = _blocking(AsyncClient.list)
    dead = _blocking(AsyncClient.dead)
    counts = _blocking(AsyncClient.counts)
    workers = _blocking(AsyncClient.workers)

    def __init__(self, url: str | None = None, settings: ClientSettings | None = None) -> None:
        self._client = AsyncClient(url, settings)
        self.address = self._client.address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="choral-jobs-client", daemon=True)
        self._thread.start()

    def forget(self, job_id: str) -> None:
        """Deprecated name of `delete`."""
        warnings.warn("forget is deprecated: use delete", DeprecationWarning, stacklevel=2)
        self.delete(job_id)

    def close(self) -> None:
        """Also cancels calls of other threads."""
        if self._loop.is_closed():
            return
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _close(self) -> None:
        await cancel_tasks(task for task in asyncio.all_tasks() if task is not asyncio.current_task())
        await self._client.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C interrupts this thread only
            raise
