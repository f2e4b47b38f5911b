"""The store that the settings ask for: Redis where there is an address of one, a folder on this machine otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from choral.server.jobs.local import LocalJobs
from choral.server.jobs.settings import JobSettings
from choral.server.jobs.store import JobStore
from choral.server.service import Service


@asynccontextmanager
async def opened_store(service: Service, settings: JobSettings, webhook_secret: str = "") -> AsyncIterator[JobStore]:
    store = _store(service, settings, webhook_secret)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _store(service: Service, settings: JobSettings, webhook_secret: str) -> JobStore:
    if settings.redis:
        from choral.server.jobs.remote import RedisJobs

        return RedisJobs(settings)
    return LocalJobs(service, settings, settings.folder(service.settings.port), webhook_secret)
