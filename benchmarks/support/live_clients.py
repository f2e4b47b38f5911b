"""Clients of many live sessions, divided over processes of their own: one process would be slower than the server.

Run as a module, this is such a process: it takes a `SessionShare` and streams all its sessions at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from choral.bench.clips import noisy
from choral.bench.json_process import JsonProcess, serve_messages
from support.live_session import LiveSession, TextEvent, stream_clips

MODULE = "support.live_clients"


@dataclass(frozen=True)
class SessionScript:
    """One session: the clips it streams, by number, and when it starts."""

    number: int
    clips: tuple[int, ...]
    delay_s: float


@dataclass(frozen=True)
class SessionShare:
    """The sessions of one process."""

    url: str
    folder: str  # has the clips
    sessions: tuple[SessionScript, ...]


@dataclass(frozen=True)
class StreamedSessions:
    sessions: tuple[LiveSession, ...]
    cpu_s: float  # of the clients


def clip_path(folder: Path, number: int) -> Path:
    return folder / f"{number}.npy"


def stream_sessions(url: str, folder: Path, scripts: Sequence[SessionScript], n_processes: int) -> StreamedSessions:
    """In the order of the scripts; each process gets every n-th session, so that all start over the same time."""
    shares = [tuple(scripts[first::n_processes]) for first in range(min(n_processes, len(scripts)))]
    with ExitStack() as stack, ThreadPoolExecutor(len(shares)) as threads:
        processes = [stack.enter_context(JsonProcess(MODULE, None)) for _ in shares]
        messages = [dataclasses.asdict(SessionShare(url, str(folder), share)) for share in shares]
        replies = list(threads.map(lambda process, message: process.request(message), processes, messages))
    by_number = {
        script.number: _session_of(fields)
        for share, reply in zip(shares, replies, strict=True)
        for script, fields in zip(share, reply["sessions"], strict=True)
    }
    ordered = tuple(by_number[script.number] for script in scripts)
    return StreamedSessions(ordered, sum(reply["cpu_s"] for reply in replies))


def _session_of(fields: dict[str, Any]) -> LiveSession:
    return LiveSession(
        starts=tuple(fields["starts"]),
        sent_s=fields["sent_s"],
        deltas=[TextEvent(**event) for event in fields["deltas"]],
        ends=fields["ends"],
        completed={item: TextEvent(**event) for item, event in fields["completed"].items()},
    )


def _stream_share(message: dict[str, Any]) -> StreamedSessions:
    scripts = [SessionScript(**script) for script in message["sessions"]]
    folder = Path(message["folder"])
    numbers = {number for script in scripts for number in script.clips}
    clips = {number: np.load(clip_path(folder, number)) for number in numbers}

    audio = [[noisy(clips[clip], (1, one.number, index)) for index, clip in enumerate(one.clips)] for one in scripts]

    async def stream_all() -> list[LiveSession]:
        pairs = zip(audio, scripts, strict=True)
        streams = [stream_clips(message["url"], samples, script.delay_s) for samples, script in pairs]
        return list(await asyncio.gather(*streams))

    started_s = time.process_time()
    sessions = tuple(asyncio.run(stream_all()))
    return StreamedSessions(sessions, time.process_time() - started_s)


if __name__ == "__main__":
    serve_messages(lambda _: _stream_share)
