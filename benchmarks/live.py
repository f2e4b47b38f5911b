"""How far does live text lag behind speech, and what do live sessions cost other requests?

Starts a server, sends every clip as a file for reference (its word times say when each word ended), then streams clips
in real time over WebSockets, in one session and in several at once. Reports the delay of words and of whole turns, the
word error rate, and how long a 5 s file takes alone and during the largest number of sessions. FOLDER has speech with
transcripts as for `choral bench wer`; without one, five sentences are downloaded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import tempfile
import threading
import time
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from choral.audio.constants import SAMPLE_RATE
from choral.bench.clips import AudioClip, Samples, noisy, short_clips
from choral.bench.http_client import ApiClient
from choral.bench.report import json_line
from choral.bench.server_process import ServerProcess
from choral.bench.wer import Score, normaliser, score
from choral.cli.arguments import Parser, describe
from choral.cli.bench import add_folder, find_clips, progress, read_counts, require_counts
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import machine_arguments
from choral.errors import EngineError, UsageError
from support.live_session import (
    PAUSE_S,
    Int16,
    LiveSession,
    TimedWord,
    delays_s,
    delta_words,
    letters_only,
    stream_clips,
)
from support.script import run_script

STAGGER_S = 2.0  # sessions start within this time
FILE_S = 5.0
FILE_PAUSE_S = 1.0  # between two files that are sent beside sessions
MAX_SESSIONS = 1000


@dataclass(frozen=True)
class LiveSettings:
    sessions: tuple[int, ...] = (1, 5, 20)
    seconds: float = 30.0  # of speech in each session, at least
    files: int = 10  # sent to an idle server


@dataclass(frozen=True)
class Spread:
    median_s: float
    p95_s: float
    n: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        if not seconds:
            return cls(float("nan"), float("nan"), 0)
        return cls(float(np.median(seconds)), float(np.percentile(seconds, 95)), len(seconds))


@dataclass(frozen=True)
class LiveLoad:
    sessions: int
    text: Spread  # delay of words
    completed: Spread  # delay of final texts after the end of their turns
    is_faithful: bool  # every final text is its deltas joined
    live: Score
    files: Spread | None  # 5 s files beside the sessions; None: none were sent


@dataclass(frozen=True)
class LiveReport:
    loads: tuple[LiveLoad, ...]
    files_alone: Spread
    plain: Score  # of the same clips sent as files


@dataclass(frozen=True)
class ReferenceClip:
    """A clip with its transcript as a file, and the end of each word."""

    clip: AudioClip
    text: str
    words: tuple[tuple[str, float], ...]


class FileSender:
    """Sends 5 s files, each slightly different; within a `with` block, in the background."""

    def __init__(self, url: str, samples: Samples) -> None:
        self._url = url
        self._samples = np.resize(samples, round(FILE_S * SAMPLE_RATE))
        self._n_sent = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.seconds: list[float] = []

    def send(self, n_files: int) -> list[float]:
        return [self._send_one() for _ in range(n_files)]

    def __enter__(self) -> FileSender:
        self.seconds, self._stop = [], threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(FILE_PAUSE_S):
            self.seconds.append(self._send_one())

    def _send_one(self) -> float:
        self._n_sent += 1
        samples = noisy(self._samples, (1, 2, self._n_sent))
        started_s = time.perf_counter()
        transcribe_file(self._url, samples, {})
        return time.perf_counter() - started_s


def transcribe_file(url: str, samples: Int16, fields: Mapping[str, str]) -> Any:
    packed = io.BytesIO()
    with wave.open(packed, "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, samples.size, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    with contextlib.closing(ApiClient(url)) as client:
        reply = client.send("talk.wav", packed.getvalue(), fields)
    if reply.status != 200:
        raise EngineError(f"a file failed with {reply.status}: {reply.text[:200]}")
    return json.loads(reply.text)


def measure(url: str, clips: Sequence[AudioClip], settings: LiveSettings, log: Callable[[str], None]) -> LiveReport:
    references = [_reference(url, clip) for clip in clips]
    files = FileSender(url, clips[0].samples)
    files.send(2)  # warm-up
    alone = files.send(settings.files)
    log(f"a file of {FILE_S:g} s alone: {np.median(alone):.2f} s")
    loads = []
    for n_sessions in settings.sessions:
        beside = files if n_sessions == max(settings.sessions) else None
        loads.append(_measure_load(url, references, n_sessions, settings, beside))
        log(f"{n_sessions} sessions: text {loads[-1].text.median_s:.2f} s behind speech")
    return LiveReport(tuple(loads), Spread.of(alone), _total(_score([one], one.text) for one in references))


def _reference(url: str, clip: AudioClip) -> ReferenceClip:
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    reply = transcribe_file(url, noisy(clip.samples, (1, 0)), fields)
    return ReferenceClip(clip, reply["text"], tuple((word["word"], word["end"]) for word in reply["words"]))


def _measure_load(
    url: str, references: Sequence[ReferenceClip], n_sessions: int, settings: LiveSettings, files: FileSender | None
) -> LiveLoad:
    scripts = [_script(references, number, settings.seconds) for number in range(n_sessions)]
    with files or contextlib.nullcontext():
        sessions = asyncio.run(_stream_all(url, scripts))
    pairs = list(zip(scripts, sessions, strict=True))
    delays = [
        delay for script, session in pairs for delay in delays_s(_spoken(script, session), delta_words(session.deltas))
    ]
    turn_delays = [
        turn.at_s - session.sent_at_s(session.ends[item] - 1)
        for session in sessions
        for item, turn in session.completed.items()
        if item in session.ends
    ]
    return LiveLoad(
        sessions=n_sessions,
        text=Spread.of(delays),
        completed=Spread.of(turn_delays),
        is_faithful=all(session.is_faithful for session in sessions),
        live=_total(_score(script, session.text) for script, session in pairs),
        files=Spread.of(files.seconds) if files is not None else None,
    )


async def _stream_all(url: str, scripts: Sequence[Sequence[ReferenceClip]]) -> list[LiveSession]:
    delays_s = np.linspace(0, STAGGER_S, len(scripts))
    streams = [
        stream_clips(url, [noisy(one.clip.samples, (1, number, index)) for index, one in enumerate(script)], delay_s)
        for number, (script, delay_s) in enumerate(zip(scripts, delays_s, strict=True))
    ]
    return list(await asyncio.gather(*streams))


def _script(references: Sequence[ReferenceClip], number: int, seconds: float) -> list[ReferenceClip]:
    """The clips of one session; each session starts with another clip."""
    script, filled_s = [], 0.0
    for one in cycle([*references[number % len(references) :], *references[: number % len(references)]]):
        script.append(one)
        filled_s += one.clip.duration_s + PAUSE_S
        if filled_s >= seconds:
            break
    return script


def _spoken(script: Sequence[ReferenceClip], session: LiveSession) -> list[TimedWord]:
    return [
        TimedWord(letters_only(word), session.sent_at_s(start + round(end_s * SAMPLE_RATE)))
        for one, start in zip(script, session.starts, strict=True)
        for word, end_s in one.words
    ]


def _score(script: Sequence[ReferenceClip], text: str) -> Score:
    reference = " ".join(one.clip.text or "" for one in script)
    return score(reference, text, normaliser(script[0].clip.language or "en"))


def _total(scores: Any) -> Score:
    return sum(scores, Score(0))


def live_table(report: LiveReport) -> str:
    rows = [["sessions", "text behind speech", "whole text behind turn", "joined = whole", "word errors", "5 s file"]]
    rows.append(["none", "", "", "", f"{report.plain.percent:.1f} %", _seconds(report.files_alone)])
    for load in report.loads:
        faithful, errors = "all" if load.is_faithful else "NOT ALL", f"{load.live.percent:.1f} %"
        cells = [_seconds(load.text), _seconds(load.completed), faithful, errors, _seconds(load.files)]
        rows.append([str(load.sessions), *cells])
    head = "live sessions: seconds are median / 95th percentile; the first row has the same clips sent as files\n\n"
    return head + format_table(rows, numbers=range(1, 6)) + "\n"


def _seconds(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median_s:.2f} / {spread.p95_s:.2f} s"


def add_arguments(parser: Parser) -> None:
    add_folder(parser)
    parser.add_argument(
        "--sessions", default="1,5,20", metavar="N,N,…", help=describe("sessions at once, in turn", "1,5,20")
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, metavar="N", help=describe("seconds of speech in each session", 30)
    )
    parser.add_argument("--files", type=int, default=10, metavar="N", help=describe("5 s files sent alone", 10))
    parser.add_argument("--limit", type=int, metavar="N", help="use this many clips (default: all)")


def run(arguments: argparse.Namespace) -> int:
    require_counts(arguments, files=1, limit=1)
    if not 5 <= arguments.seconds <= 3600:
        raise UsageError("seconds must be a number from 5 to 3600")
    sessions = read_counts("sessions", arguments.sessions, MAX_SESSIONS, example="1,5,20")
    settings = LiveSettings(sessions, arguments.seconds, arguments.files)
    normaliser("en")  # fail before the work if the package is missing
    labelled = find_clips(arguments.folder, arguments.limit, arguments.quiet)
    clips = short_clips(labelled, len(labelled))
    flags = [*machine_arguments(arguments), f"--realtime-sessions={max(sessions)}"]
    with tempfile.TemporaryDirectory(prefix="choral-bench-") as folder, ServerProcess(flags, Path(folder)) as server:
        report = measure(server.url, clips, settings, progress(arguments))
    write_stdout(live_table(report))
    write_stdout(json_line("live", {"model": arguments.model, "settings": settings, "report": report}) + "\n")
    return 0 if all(load.is_faithful for load in report.loads) else 1


if __name__ == "__main__":
    run_script(
        __doc__, add_arguments, run, epilog="exit codes: 0 every final text equals its joined deltas, 1 otherwise"
    )
