"""`Client`: the blocking client. It runs an `AsyncClient` in an event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

from choral.common.aio import cancel_tasks
from choral.jobs.client import AsyncClient, AudioToSend, OnRecord
from choral.jobs.job_queue import QueueCounts
from choral.jobs.record import JobRecord, WorkerStatus
from choral.jobs.settings import ClientSettings
from choral.types import Priority, TranscribeOptions, Transcript

T = TypeVar("T")


class Client:
    """Thread-safe. Use it in a `with`, or close it. The methods are those of `AsyncClient`."""

    def __init__(self, url: str | None = None, settings: ClientSettings | None = None) -> None:
        self._client = AsyncClient(url, settings)
        self.address = self._client.address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="choral-jobs-client", daemon=True)
        self._thread.start()

    def submit(
        self,
        audio: AudioToSend,
        options: TranscribeOptions | None = None,
        *,
        priority: Priority = "interactive",
        callback: str | None = None,
        job_id: str | None = None,
        by_path: bool = False,
        name: str | None = None,
        **option_values: Any,
    ) -> str:
        return self._run(
            self._client.submit(
                audio,
                options,
                priority=priority,
                callback=callback,
                job_id=job_id,
                by_path=by_path,
                name=name,
                **option_values,
            )
        )

    def show(self, job_id: str) -> JobRecord:
        return self._run(self._client.show(job_id))

    def show_all(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        return self._run(self._client.show_all(job_ids))

    def result(self, job_id: str) -> Transcript:
        return self._run(self._client.result(job_id))

    def wait(self, job_id: str, *, timeout_s: float | None = None, on_record: OnRecord | None = None) -> Transcript:
        return self._run(self._client.wait(job_id, timeout_s=timeout_s, on_record=on_record))

    def wait_all(
        self, job_ids: Sequence[str], *, timeout_s: float | None = None, on_record: OnRecord | None = None
    ) -> Sequence[JobRecord]:
        return self._run(self._client.wait_all(job_ids, timeout_s=timeout_s, on_record=on_record))

    def cancel(self, job_id: str) -> JobRecord:
        return self._run(self._client.cancel(job_id))

    def retry(self, job_id: str) -> JobRecord:
        return self._run(self._client.retry(job_id))

    def delete(self, job_id: str) -> None:
        self._run(self._client.delete(job_id))

    def forget(self, job_id: str) -> None:
        """Deprecated name of `delete`."""
        warnings.warn("forget is deprecated: use delete", DeprecationWarning, stacklevel=2)
        self.delete(job_id)

    def list(self, limit: int = 50) -> Sequence[JobRecord]:
        return self._run(self._client.list(limit))

    def dead(self, limit: int = 50) -> Sequence[JobRecord]:
        return self._run(self._client.dead(limit))

    def counts(self) -> QueueCounts:
        return self._run(self._client.counts())

    def workers(self) -> Sequence[WorkerStatus]:
        return self._run(self._client.workers())

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
