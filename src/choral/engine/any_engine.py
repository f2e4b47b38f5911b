"""What callers of an engine see, wherever it runs: in this process, on several devices, or in another process."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from choral.config import EngineSettings
from choral.engine.capacity import Capacity
from choral.engine.engine import EngineStats
from choral.engine.steps import Pending
from choral.engine.window import Caller, Result, Window


class AnyEngine(Protocol):
    """`Engine`, `EngineGroup`, and the client of an engine in another process."""

    name: str
    device: str
    compute_type: str
    n_devices: int
    capacity: Capacity
    settings: EngineSettings

    def submit(self, window: Window[Result], caller: Caller | None = None) -> Pending[Result]: ...

    def cancel(self, future: Future[Any]) -> None: ...

    def cancel_all(self, caller: Caller) -> None: ...

    def drain(self, timeout_s: float | None = None) -> bool: ...

    def close(self) -> None: ...

    def clear_cache(self) -> None: ...

    def self_test(self) -> None: ...

    @property
    def n_in_flight(self) -> int:
        """Windows that have not left."""

    @property
    def is_working(self) -> bool: ...

    @property
    def failure(self) -> str | None: ...

    @property
    def failed_devices(self) -> dict[str, str]: ...

    @property
    def stats(self) -> EngineStats: ...
