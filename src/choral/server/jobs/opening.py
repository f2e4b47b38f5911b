"""The store that the settings ask for, and the folder it keeps things in: Redis where there is an address of one, this
machine otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from choral.server.jobs.charges import JobCharges
from choral.server.jobs.local import LocalJobs
from choral.server.jobs.settings import JobSettings
from choral.server.jobs.store import JobStore
from choral.server.keys import KeyRing
from choral.server.limits import Meters
from choral.server.service import Service
from choral.server.usage import opened_usage


def state_folder(settings: JobSettings, port: int) -> AbstractContextManager[Path | str]:
    folder = settings.folder(port)
    return nullcontext(folder) if folder is not None else TemporaryDirectory(prefix="choral-jobs-")


@asynccontextmanager
async def opened_meters(keys: KeyRing, folder: Path) -> AsyncIterator[Meters]:
    if not keys.has_limits:
        yield Meters()
        return
    async with opened_usage(folder) as (book, entries):
        yield Meters(book.note, entries)


@asynccontextmanager
async def opened_store(
    service: Service, settings: JobSettings, folder: Path, charges: JobCharges, webhook_secret: str = ""
) -> AsyncIterator[JobStore]:
    store = _store(service, settings, folder, charges, webhook_secret)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _store(service: Service, settings: JobSettings, folder: Path, charges: JobCharges, webhook_secret: str) -> JobStore:
    if settings.redis:
        from choral.server.jobs.remote import RedisJobs

        return RedisJobs(settings, charges)
    return LocalJobs(service, settings, folder, charges, webhook_secret)
