"""`JobTable` for the event loop: every call runs on one thread, one after the other, each as a whole."""

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
Result = TypeVar("Result")
RETRY_PAUSE_S = 2.0


class AsyncTable:
    def __init__(self, folder: Path) -> None:
        self.table = JobTable(folder)
        self._thread = ThreadPoolExecutor(1, "choral-jobs-disk")

    async def run(self, call: Callable[[JobTable], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, self.table)

    async def retry(self, call: Callable[[JobTable], Result]) -> Result:
        """For calls that no client waits for: repeated until the disk works."""
        while True:
            try:
                return await self.run(call)
            except StorageError as error:
                log.error("%s; trying again in %g s", error, RETRY_PAUSE_S)
                await asyncio.sleep(RETRY_PAUSE_S)

    async def store_audio(self, file: IO[bytes], path: Path) -> None:
        """Copy the audio; it is on the disk before this returns."""
        await asyncio.to_thread(_copy, file, path)

    async def close(self) -> None:
        """After all calls that were started."""
        await self.run(JobTable.close)
        self._thread.shutdown()


def _copy(file: IO[bytes], path: Path) -> None:
    with storage_errors(path):
        try:
            with path.open("xb") as copy:
                shutil.copyfileobj(file, copy, 2**20)
                copy.flush()
                os.fsync(copy.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
