"""The store that the settings ask for: Redis where there is an address of one, a folder on this machine otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from choral.server.jobs.local import LocalJobs
from choral.server.jobs.settings import JobSettings
from choral.server.jobs.store import JobStore
from choral.server.service import Service


@asynccontextmanager
async def opened_store(service: Service, settings: JobSettings, webhook_secret: str = "") -> AsyncIterator[JobStore]:
    with _folder(settings, service.settings.port) as folder:
        store = _store(service, settings, folder, webhook_secret)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


def _folder(settings: JobSettings, port: int) -> AbstractContextManager[Path | str]:
    folder = settings.folder(port)
    return nullcontext(folder) if folder is not None else TemporaryDirectory(prefix="choral-jobs-")


def _store(service: Service, settings: JobSettings, folder: Path | str, webhook_secret: str) -> JobStore:
    if settings.redis:
        from choral.server.jobs.remote import RedisJobs

        return RedisJobs(settings)
    return LocalJobs(service, settings, Path(folder), webhook_secret)
