"""The store that the settings ask for, and the folder it keeps things in: Redis where there is an address of one, this
machine otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from choral.server.jobs.job_billing import JobBilling
from choral.server.jobs.job_store import JobStore
from choral.server.jobs.settings import JobSettings
from choral.server.jobs.sqlite_store import SqliteJobStore
from choral.server.service import Service


def state_folder(settings: JobSettings, port: int) -> AbstractContextManager[Path | str]:
    folder = settings.folder(port)
    return nullcontext(folder) if folder is not None else TemporaryDirectory(prefix="choral-jobs-")


@asynccontextmanager
async def open_job_store(
    service: Service, settings: JobSettings, folder: Path, charges: JobBilling, webhook_secret: str = ""
) -> AsyncIterator[JobStore]:
    store = _store(service, settings, folder, charges, webhook_secret)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _store(service: Service, settings: JobSettings, folder: Path, charges: JobBilling, webhook_secret: str) -> JobStore:
    if settings.redis:
        from choral.server.jobs.redis_store import RedisJobStore

        return RedisJobStore(settings, charges)
    return SqliteJobStore(service, settings, folder, charges, webhook_secret)
