"""Chooses the engine for a window: one that knows its audio, else the one with the fewest windows in flight.

Plain Python with the time as an argument, so that the simulator runs the same code. An engine that failed is suspended:
it gets windows again after a while, or when all others are suspended too.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_KNOWN_AUDIOS = 4096  # whose engine is remembered
SUSPEND_S = 5.0  # an engine that failed gets no windows for so long


@dataclass(eq=False)
class RemoteHost:
    """One engine, as this process sees it."""

    handle: Any
    in_flight: int = 0
    suspended_until_s: float = 0.0


class HostRouter:
    """Not safe for threads: its owner has a lock."""

    def __init__(self, handles: Iterable[Any]) -> None:
        self.hosts = [RemoteHost(handle) for handle in handles]
        self._known: OrderedDict[bytes, RemoteHost] = OrderedDict()

    def send(self, key: bytes, now_s: float) -> RemoteHost:
        """The engine for a window of this audio, which counts as in flight until `receive`."""
        host = self._known.pop(key, None)
        if host is None or host.suspended_until_s > now_s:
            # At random between equals, or the tasks of all nodes would begin with the same engine.
            host = min(self.hosts, key=lambda each: (each.suspended_until_s > now_s, each.in_flight, random.random()))
        self._known[key] = host
        if len(self._known) > MAX_KNOWN_AUDIOS:
            self._known.popitem(last=False)
        host.in_flight += 1
        return host

    def receive(self, host: RemoteHost) -> None:
        host.in_flight -= 1

    def suspend(self, host: RemoteHost, now_s: float) -> bool:
        """True: all engines are suspended now."""
        host.suspended_until_s = now_s + SUSPEND_S
        return all(each.suspended_until_s > now_s for each in self.hosts)
