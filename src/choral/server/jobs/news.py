"""Who wants to hear of which job: an event for each listener, set whenever something about its job has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class ChangeNotifier:
    """Used in one event loop only."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def of(self, job_id: str) -> Iterator[asyncio.Event]:
        changed = asyncio.Event()
        self._listeners.setdefault(job_id, set()).add(changed)
        try:
            yield changed
        finally:
            own = self._listeners[job_id]
            own.discard(changed)
            if not own:
                del self._listeners[job_id]

    def tell(self, job_id: str) -> None:
        for changed in self._listeners.get(job_id, ()):
            changed.set()
