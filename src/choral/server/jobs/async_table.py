"""The table of jobs from the event loop's side: every call runs on one thread, one after the other, as a whole."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeVar

from choral.errors import StorageError
from choral.server.jobs.job_table import JobTable
from choral.storage import storage_errors

log = logging.getLogger("choral.server")
Answer = TypeVar("Answer")
PAUSE_S = 2.0


class AsyncTable:
    def __init__(self, folder: Path) -> None:
        self.table = JobTable(folder)
        self._thread = ThreadPoolExecutor(1, "choral-jobs-disk")

    async def do(self, work: Callable[[JobTable], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self.table)

    async def retry_until_written(self, work: Callable[[JobTable], Answer]) -> Answer:
        """For what nobody waits to be told of: on a disk that refuses, it is tried until it succeeds."""
        while True:
            try:
                return await self.do(work)
            except StorageError as error:
                log.error("%s; trying again in %g s", error, PAUSE_S)
                await asyncio.sleep(PAUSE_S)

    async def keep(self, file: IO[bytes], place: Path) -> None:
        """A copy of the audio that is on the disk before this returns."""
        await asyncio.to_thread(_copy, file, place)

    async def close(self) -> None:
        """After all that was begun."""
        await self.do(JobTable.close)
        self._thread.shutdown()


def _copy(file: IO[bytes], place: Path) -> None:
    with storage_errors(place):
        try:
            with place.open("xb") as copy:
                shutil.copyfileobj(file, copy, 2**20)
                copy.flush()
                os.fsync(copy.fileno())
        except BaseException:
            place.unlink(missing_ok=True)
            raise
