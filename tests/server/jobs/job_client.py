"""Helpers for jobs over HTTP: submit, wait, and read events."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from choral.bench.clips import read_samples, write_flac

LIMIT_S = 120.0


@dataclass(frozen=True)
class Event:
    id: int
    name: str
    fields: dict[str, Any]


def submit(http: httpx.Client, path: Path, **fields: str) -> str:
    with path.open("rb") as file:
        response = http.post("/v1/jobs", files={"file": (path.name, file)}, data=fields)
    assert response.status_code == 202, response.text
    job_id: str = response.json()["id"]
    assert response.headers["location"] == f"/v1/jobs/{job_id}"
    return job_id


def wait_for(http: httpx.Client, job_id: str, *states: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + LIMIT_S
    while (job := http.get(f"/v1/jobs/{job_id}").json())["state"] not in states:
        assert time.monotonic() < deadline_s, job
        time.sleep(0.05)
    return dict(job)


def read_events(http: httpx.Client, job_id: str, *, last: int | None = None, max_events: int = 10**6) -> list[Event]:
    """All events until the end, or the first `max_events`; then the connection is closed."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    found: list[Event] = []
    with http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines: dict[str, str] = {}
        for line in response.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                lines[name] = value
            elif "event" in lines:
                found.append(Event(int(lines["id"]), lines["event"], json.loads(lines["data"])))
                lines = {}
                if len(found) == max_events:
                    break
            else:
                lines = {}
    return found


def joined(paths: Sequence[Path], times: int, folder: Path) -> Path:
    """These recordings joined and repeated: a job that takes a while."""
    samples = np.concatenate([read_samples(path) for path in paths] * times)
    write_flac(folder / "long.flac", np.rint(samples * 32767).astype(np.int16))
    return folder / "long.flac"
