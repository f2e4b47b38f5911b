"""The engine as a long-lived process sees it: a client that is replaced when the engine's process was started again.

Windows that the old client had have failed with `EngineClosed`; what is submitted next goes to the new one.
`SupervisedEngine` is the one that starts the process.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from choral.engine.any_engine import AnyEngine
from choral.engine.engine import EngineStats
from choral.engine.steps import Pending
from choral.engine.window import Caller, Result, Window


class ReplaceableEngine:
    """The interface of `Engine`."""

    def __init__(self, client: AnyEngine) -> None:
        self.replace(client)

    def replace(self, client: AnyEngine) -> None:
        """From any thread; the old client is the caller's to close."""
        self._client = client
        self.name, self.device, self.compute_type = client.name, client.device, client.compute_type
        self.n_devices, self.capacity, self.settings = client.n_devices, client.capacity, client.settings

    def submit(self, window: Window[Result], caller: Caller | None = None) -> Pending[Result]:
        return self._client.submit(window, caller)

    def cancel(self, future: Future[Any]) -> None:
        self._client.cancel(future)

    def cancel_all(self, caller: Caller) -> None:
        self._client.cancel_all(caller)

    def drain(self, timeout_s: float | None = None) -> bool:
        return self._client.drain(timeout_s)

    def close(self) -> None:
        self._client.close()

    def clear_cache(self) -> None:
        self._client.clear_cache()

    def self_test(self) -> None:
        self._client.self_test()

    @property
    def n_in_flight(self) -> int:
        return self._client.n_in_flight

    @property
    def is_working(self) -> bool:
        return self._client.is_working

    @property
    def failure(self) -> str | None:
        return self._client.failure

    @property
    def failed_devices(self) -> dict[str, str]:
        return self._client.failed_devices

    @property
    def stats(self) -> EngineStats:
        return self._client.stats
