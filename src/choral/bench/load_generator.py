"""How requests are sent to a system, and what is seen from the callers' side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

Sent = TypeVar("Sent")


@dataclass(frozen=True)
class Stages:
    """Where the model's time went."""

    mel_s: float
    encoder_s: float
    decoder_s: float


@dataclass(frozen=True)
class RoundResult:
    """One round of requests through one system."""

    texts: tuple[str, ...]
    latencies_s: tuple[float, ...]
    wall_s: float
    cpu_s: float  # of all threads of the process: what a busy machine changes less than the time that passes
    idle_share: float | None = None  # of the time, how much the model had nothing to do; None: not known
    stages: Stages | None = None


def send_all(transcribe: Callable[[Sent], str], sent: Sequence[Sent], n_callers: int) -> RoundResult:
    """Each caller sends its next request when its last one is answered; one caller sends one after another."""

    def call(own: Sent) -> tuple[str, float]:
        started_s = time.perf_counter()
        text = transcribe(own)
        return text, time.perf_counter() - started_s

    with ThreadPoolExecutor(max_workers=n_callers) as callers:
        started_s, before_s = time.perf_counter(), time.process_time()
        answers = list(callers.map(call, sent))
        wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - before_s
    texts, latencies_s = zip(*answers, strict=True)
    return RoundResult(texts, latencies_s, wall_s, cpu_s)


def send_together(transcribe: Callable[[Sequence[Sent]], Sequence[str]], sent: Sequence[Sent]) -> RoundResult:
    """All requests in one call: nobody is answered before the last."""
    started_s, before_s = time.perf_counter(), time.process_time()
    texts = transcribe(sent)
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - before_s
    return RoundResult(tuple(texts), (wall_s,) * len(sent), wall_s, cpu_s)
