"""Watches a server while a test attacks it: `/health/live` stays fast, and good requests succeed in bounded time.

The probe runs in a process of its own, so the attacker's threads do not slow it down. On a machine that is busy with
something else, the limit grows by the time that the probe and the server waited for a processor: by the lateness of the
probe's own sleeps, and by the scheduler's count of the waits of the server's threads, which wait for each other too.
What the thread of the event loop computed meanwhile always counts. For good requests, only the longest wait of a thread
is subtracted, because they pass from thread to thread.

    with under_attack(server, speech):
        attack()
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import psutil

LIVE_WITHIN_S = 0.25
GOOD_WITHIN_S = 30.0
TIMEOUT_FACTOR = 3.0  # a good request on a busy machine may take this many times as long
PROBE_EVERY_S = 0.05
TICK_S = 0.01
BOUNDARY = "choral-probe"
ENDED = ("succeeded", "failed", "dead", "cancelled")
GoodRequest = Literal["transcription", "job", "none"]


class ThreadTimes(NamedTuple):
    """How long a thread has run, and has waited for a processor."""

    run_s: float
    wait_s: float


NO_TIMES = ThreadTimes(0.0, 0.0)


@dataclass
class ProbeReport:
    """What the probe saw; durations in seconds."""

    n_live: int = 0
    slowest_live_s: float = 0.0  # less the lateness of the machine
    good_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def check(self, *, good: GoodRequest = "transcription", good_within_s: float = GOOD_WITHIN_S) -> None:
        assert not self.failures, self.failures[:5]
        assert self.n_live > 0
        assert self.slowest_live_s <= LIVE_WITHIN_S, f"/health/live took {self.slowest_live_s:.3f} s"
        if good != "none":
            assert self.good_s
            assert max(self.good_s) <= good_within_s, f"a good request took {max(self.good_s):.1f} s"


@contextmanager
def under_attack(
    server: object,
    speech: Path,
    *,
    expect: str = "country",
    good: GoodRequest = "transcription",
    good_within_s: float = GOOD_WITHIN_S,
    api_key: str = "",
) -> Iterator[ProbeReport]:
    """Probe a `ServeProcess` inside the block, then assert the limits. Every good request sends `speech`.

    The report is filled when the block ends. At least one good request runs after the start of the attack; the last one
    may end after it.
    """
    url: str = server.url  # type: ignore[attr-defined]
    pid = str(server.process.pid)  # type: ignore[attr-defined]
    command = [sys.executable, __file__, url, pid, str(speech), expect, good, str(good_within_s), api_key]
    report = ProbeReport()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            yield report
            out, _ = process.communicate("", timeout=2 * TIMEOUT_FACTOR * good_within_s + 10)
        finally:
            process.kill()
    report.__dict__.update(json.loads(out))
    report.check(good=good, good_within_s=good_within_s)


def memory_bytes(server: object) -> int:
    """The resident memory of a `ServeProcess`'s process."""
    return int(psutil.Process(server.process.pid).memory_info().rss)  # type: ignore[attr-defined]


def wait_until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        time.sleep(0.05)


class Probe:
    """The probe process: one thread per kind of request, and one that measures the machine's lateness."""

    def __init__(self, url: str, pid: str, speech: Path, expect: str, good_within_s: float, api_key: str) -> None:
        self._address, self._threads = urlsplit(url).netloc, Path(f"/proc/{pid}/task")
        self._loop_thread = pid  # the main thread
        self._body, self._expect, self._timeout_s = form_body(speech), expect, TIMEOUT_FACTOR * good_within_s
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._stop = threading.Event()
        self._late_s: list[tuple[float, float]] = []  # time, lateness
        self.report = ProbeReport()

    def run(self, good: GoodRequest) -> None:
        watches: list[Callable[[], None]] = [self._tick, self._watch_live]
        if good == "transcription":
            watches.append(lambda: self._watch_good(self._transcribe))
        elif good == "job":
            watches.append(lambda: self._watch_good(self._run_job))
        threads = [threading.Thread(target=watch) for watch in watches]
        for thread in threads:
            thread.start()
        print("started", flush=True)
        sys.stdin.read()  # until the attack is over
        self._stop.set()
        for thread in threads:
            thread.join()

    def _tick(self) -> None:
        while not self._stop.is_set():
            started_s = time.monotonic()
            time.sleep(TICK_S)
            self._late_s.append((started_s, time.monotonic() - started_s - TICK_S))

    def _watch_live(self) -> None:
        while not self._stop.is_set():
            before, started_s = self._thread_times(), time.monotonic()
            try:
                status, _ = self._request("GET", "/health/live", timeout_s=10.0)
            except OSError as error:
                self.report.failures.append(f"/health/live: {error!r}")
                continue
            elapsed_s = time.monotonic() - started_s
            if elapsed_s > LIVE_WITHIN_S:
                time.sleep(2 * TICK_S)  # for the last tick
                elapsed_s -= sum(late_s for at_s, late_s in self._late_s[:] if at_s >= started_s - 1)
                loop_s = self._thread_times()[self._loop_thread].run_s - before[self._loop_thread].run_s
                elapsed_s = max(elapsed_s - sum(self._waits_s(before)), loop_s)
            self.report.n_live += 1
            self.report.slowest_live_s = max(self.report.slowest_live_s, elapsed_s)
            if status != 200:
                self.report.failures.append(f"/health/live: {status}")
            self._stop.wait(PROBE_EVERY_S)

    def _thread_times(self) -> dict[str, ThreadTimes]:
        """Of each thread of the server, by its number."""
        found = {}
        for thread in self._threads.glob("*/schedstat"):
            with contextlib.suppress(OSError):  # it has ended
                run_ns, wait_ns, _ = thread.read_text().split()
                found[thread.parent.name] = ThreadTimes(int(run_ns) / 1e9, int(wait_ns) / 1e9)
        return found

    def _waits_s(self, before: dict[str, ThreadTimes]) -> list[float]:
        """How long each thread of the server has waited for a processor since then."""
        now = self._thread_times()
        return [times.wait_s - before.get(thread, NO_TIMES).wait_s for thread, times in now.items()]

    def _watch_good(self, send: Callable[[], str]) -> None:
        while not self._stop.is_set() or not self.report.good_s:
            before, started_s = self._thread_times(), time.monotonic()
            try:
                text = send()
            except (OSError, KeyError, ValueError) as error:
                self.report.failures.append(f"good request: {error!r}")
                return
            self.report.good_s.append(time.monotonic() - started_s - max(self._waits_s(before)))
            if self._expect not in text:
                self.report.failures.append(f"good request: {text!r}")
            self._stop.wait(PROBE_EVERY_S)

    def _transcribe(self) -> str:
        return str(self._send_form("/v1/audio/transcriptions", 200)["text"])

    def _run_job(self) -> str:
        job_id = self._send_form("/v1/jobs", 202)["id"]
        deadline_s = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline_s:
            _, data = self._request("GET", f"/v1/jobs/{job_id}", timeout_s=self._timeout_s)
            if (job := json.loads(data))["state"] in ENDED:
                return str(job["result"]["text"]) if "result" in job else data.decode()
            time.sleep(PROBE_EVERY_S)
        raise TimeoutError(f"job {job_id} has not ended: {data.decode()[:200]}")

    def _send_form(self, path: str, expected_status: int) -> dict[str, object]:
        body = self._body
        if path.endswith("transcriptions"):
            body = form_field("model", "whisper-1") + body
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        status, data = self._request("POST", path, body, headers, timeout_s=self._timeout_s)
        if status != expected_status:
            raise ValueError(f"{status} {data.decode(errors='replace')[:300]}")
        answer: dict[str, object] = json.loads(data)
        return answer

    def _request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, *, timeout_s: float
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._address, timeout=timeout_s)
        try:
            connection.request(method, path, body or None, {**self._headers, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def form_field(name: str, value: str) -> bytes:
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


def form_body(file: Path) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{file.name}"\r\n\r\n'
    return head.encode() + file.read_bytes() + f"\r\n--{BOUNDARY}--\r\n".encode()


def main(url: str, pid: str, speech: str, expect: str, good: GoodRequest, good_within_s: str, api_key: str) -> None:
    probe = Probe(url, pid, Path(speech), expect, float(good_within_s), api_key)
    probe.run(good)
    print(json.dumps(probe.report.__dict__))


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
