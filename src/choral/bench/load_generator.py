"""Sends requests to a system under test, and times them from the callers' side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

Request = TypeVar("Request")


@dataclass(frozen=True)
class RoundResult:
    """One round of requests through one system."""

    texts: tuple[str, ...]
    latencies_s: tuple[float, ...]
    wall_s: float
    cpu_s: float  # of all threads of the process: other load on the machine changes it less than wall time
    internals: dict[str, float] = field(default_factory=dict)  # figures that only this system has


def send_all(transcribe: Callable[[Request], str], requests: Sequence[Request], n_callers: int) -> RoundResult:
    """Each caller sends its next request when its previous one has completed."""

    def call(request: Request) -> tuple[str, float]:
        started_s = time.perf_counter()
        text = transcribe(request)
        return text, time.perf_counter() - started_s

    with ThreadPoolExecutor(max_workers=n_callers) as callers:
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        results = list(callers.map(call, requests))
        wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    texts, latencies_s = zip(*results, strict=True)
    return RoundResult(texts, latencies_s, wall_s, cpu_s)


def send_together(transcribe: Callable[[Sequence[Request]], Sequence[str]], requests: Sequence[Request]) -> RoundResult:
    """All requests in one call: every caller waits for the last."""
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    texts = transcribe(requests)
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    return RoundResult(tuple(texts), (wall_s,) * len(requests), wall_s, cpu_s)
