"""Durable job queue over Redis: clients submit audio, any number of workers transcribe it, and no job is lost."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from choral.jobs.client import AsyncClient
    from choral.jobs.record import JobRecord
    from choral.jobs.settings import ClientSettings, WorkerSettings
    from choral.jobs.sync_client import Client

__all__ = ["AsyncClient", "Client", "ClientSettings", "JobRecord", "WorkerSettings"]

_MODULES = {
    "AsyncClient": "choral.jobs.client",
    "Client": "choral.jobs.sync_client",
    "ClientSettings": "choral.jobs.settings",
    "JobRecord": "choral.jobs.record",
    "WorkerSettings": "choral.jobs.settings",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'choral.jobs' has no attribute {name!r}")
