"""How far does live text lag behind speech, and what do live sessions cost other requests?

Starts a server, sends every clip as a file for reference (its word times say when each word ended), then streams clips
in real time over WebSockets, in one session and in several at once. Reports the delay of words and of whole turns, the
word error rate, the CPU time of the server's processes for a second of a session, and how long a 5 s file takes alone
and during the largest number of sessions. With --no-model, the engine takes no time and every window has the same text:
what is measured is the CPU time. FOLDER has speech with transcripts as for `choral bench wer`; without one, five
sentences are downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import threading
import time
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from support.live_clients import SessionScript, clip_path, stream_sessions
from support.live_session import PAUSE_S, Int16, LiveSession, TimedWord, delays_s, delta_words, letters_only
from support.script import run_script
from support.server_cpu import ServerCpu, server_cpu

STAGGER_S = 2.0  # sessions start within this time
FILE_S = 5.0
FILE_PAUSE_S = 1.0  # between two files that are sent beside sessions
MAX_SESSIONS = 1000
SESSIONS_PER_CLIENT = 50  # of a process of clients
NULL_SERVER, NULL_ENGINE_SERVER = "choral.bench.null_runner", "choral.bench.null_engine_server"


@dataclass(frozen=True)
class LiveSettings:
    sessions: tuple[int, ...] = (1, 5, 20)
    seconds: float = 30.0  # of speech in each session, at least
    files: int = 10  # sent to an idle server
    clients: int = 0  # processes of clients; 0: one for every 50 sessions

    def n_clients(self, n_sessions: int) -> int:
        return self.clients or -(-n_sessions // SESSIONS_PER_CLIENT)


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
    live: Score | None  # None: there is no model
    cpu: ServerCpu  # seconds for a second of a session
    clients_cpu: float  # likewise, of the benchmark itself
    files: Spread | None  # 5 s files beside the sessions; None: none were sent


@dataclass(frozen=True)
class LiveReport:
    loads: tuple[LiveLoad, ...]
    files_alone: Spread
    plain: Score | None  # of the same clips sent as files


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


def measure(
    server: ServerProcess, clips: Sequence[AudioClip], settings: LiveSettings, folder: Path, log: Callable[[str], None]
) -> LiveReport:
    """With a model; `folder` is for the audio of the clients."""
    references = [_reference(server.url, clip) for clip in clips]
    files = FileSender(server.url, clips[0].samples)
    files.send(2)  # warm-up
    alone = files.send(settings.files)
    log(f"a file of {FILE_S:g} s alone: {np.median(alone):.2f} s")
    loads = []
    for n_sessions in settings.sessions:
        beside = files if n_sessions == max(settings.sessions) else None
        loads.append(_measure_load(server, references, n_sessions, settings, folder, beside))
        log(f"{n_sessions} sessions: text {loads[-1].text.median_s:.2f} s behind speech")
    return LiveReport(tuple(loads), Spread.of(alone), _total(_score([one], one.text) for one in references))


def measure_cpu(
    server: ServerProcess, clips: Sequence[AudioClip], settings: LiveSettings, folder: Path, log: Callable[[str], None]
) -> LiveReport:
    """Without a model, so without text to compare."""
    untimed = [ReferenceClip(clip, "", ()) for clip in clips]
    loads = []
    for n_sessions in settings.sessions:
        load = _measure_load(server, untimed, n_sessions, settings, folder, None)
        loads.append(replace(load, live=None))
        log(f"{n_sessions} sessions: {load.cpu}")
    return LiveReport(tuple(loads), Spread.of([]), None)


def _reference(url: str, clip: AudioClip) -> ReferenceClip:
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    reply = transcribe_file(url, noisy(clip.samples, (1, 0)), fields)
    return ReferenceClip(clip, reply["text"], tuple((word["word"], word["end"]) for word in reply["words"]))


def _measure_load(
    server: ServerProcess,
    references: Sequence[ReferenceClip],
    n_sessions: int,
    settings: LiveSettings,
    folder: Path,
    files: FileSender | None,
) -> LiveLoad:
    choices = [_choose_clips(references, number, settings.seconds) for number in range(n_sessions)]
    delays = np.linspace(0, STAGGER_S, n_sessions).tolist()
    scripts = [SessionScript(number, clips, delays[number]) for number, clips in enumerate(choices)]
    for number in {number for clips in choices for number in clips}:
        np.save(clip_path(folder, number), references[number].clip.samples)
    before = server_cpu(server.pid)
    with files or contextlib.nullcontext():
        streamed = stream_sessions(server.url, folder, scripts, settings.n_clients(n_sessions))
    used = server_cpu(server.pid).since(before)
    sessions = streamed.sessions
    streamed_s = sum(session.sent_s[-1] - session.sent_s[0] for session in sessions)
    pairs = [([references[n] for n in clips], session) for clips, session in zip(choices, sessions, strict=True)]
    word_delays = [
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
        text=Spread.of(word_delays),
        completed=Spread.of(turn_delays),
        is_faithful=all(session.is_faithful for session in sessions),
        live=_total(_score(script, session.text) for script, session in pairs),
        cpu=used.per(streamed_s),
        clients_cpu=streamed.cpu_s / streamed_s,
        files=Spread.of(files.seconds) if files is not None else None,
    )


def _choose_clips(references: Sequence[ReferenceClip], number: int, seconds: float) -> tuple[int, ...]:
    """The clips of one session, by number; each session starts with another clip."""
    chosen, filled_s, first = [], 0.0, number % len(references)
    for clip in cycle([*range(first, len(references)), *range(first)]):
        chosen.append(clip)
        filled_s += references[clip].clip.duration_s + PAUSE_S
        if filled_s >= seconds:
            break
    return tuple(chosen)


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
    rows.append(["none", "", "", "", _percent(report.plain), _seconds(report.files_alone)])
    for load in report.loads:
        faithful = "all" if load.is_faithful else "NOT ALL"
        cells = [_seconds(load.text), _seconds(load.completed), faithful, _percent(load.live), _seconds(load.files)]
        rows.append([str(load.sessions), *cells])
    head = "live sessions: seconds are median / 95th percentile; the first row has the same clips sent as files\n\n"
    return head + format_table(rows, numbers=range(1, 6)) + "\n" + cpu_table(report)


def cpu_table(report: LiveReport) -> str:
    rows = [["sessions", *vars(ServerCpu()), "benchmark", "cores in all"]]
    for load in report.loads:
        shares = [*vars(load.cpu).values(), load.clients_cpu]
        n_cores = sum(shares) * load.sessions
        rows.append([str(load.sessions), *(f"{share * 1e3:.1f} ms" for share in shares), f"{n_cores:.1f}"])
    head = "CPU time of a second of one session, by process\n\n"
    return "\n" + head + format_table(rows, numbers=range(1, 7)) + "\n"


def _percent(score: Score | None) -> str:
    return "" if score is None else f"{score.percent:.1f} %"


def _seconds(spread: Spread | None) -> str:
    return "" if spread is None or not spread.n else f"{spread.median_s:.2f} / {spread.p95_s:.2f} s"


def add_arguments(parser: Parser) -> None:
    add_folder(parser)
    parser.add_argument(
        "--sessions", default="1,5,20", metavar="N,N,…", help=describe("sessions at once, in turn", "1,5,20")
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, metavar="N", help=describe("seconds of speech in each session", 30)
    )
    parser.add_argument("--files", type=int, default=10, metavar="N", help=describe("5 s files sent alone", 10))
    parser.add_argument(
        "--clients", type=int, default=0, metavar="N", help="processes of clients (default: one for every 50 sessions)"
    )
    parser.add_argument(
        "--realtime-processes", type=int, metavar="N", help="processes for live sessions (default: the server's choice)"
    )
    parser.add_argument("--no-model", action="store_true", help="measure CPU time with an engine that takes no time")
    parser.add_argument(
        "--engine-process",
        action="store_true",
        help="with --no-model: the engine has a process of its own, as on a GPU (default: it is in the server's)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="use this many clips (default: all)")


def run(arguments: argparse.Namespace) -> int:
    require_counts(arguments, files=1, limit=1, clients=0)
    if not 5 <= arguments.seconds <= 3600:
        raise UsageError("seconds must be a number from 5 to 3600")
    sessions = read_counts("sessions", arguments.sessions, MAX_SESSIONS, example="1,5,20")
    settings = LiveSettings(sessions, arguments.seconds, arguments.files, arguments.clients)
    normaliser("en")  # fail before the work if the package is missing
    labelled = find_clips(arguments.folder, arguments.limit, arguments.quiet)
    clips = short_clips(labelled, len(labelled))
    flags = [*machine_arguments(arguments), f"--realtime-sessions={max(sessions)}"]
    if arguments.realtime_processes is not None:
        flags.append(f"--realtime-processes={arguments.realtime_processes}")
    with (
        tempfile.TemporaryDirectory(prefix="choral-bench-") as name,
        ServerProcess(flags, Path(name), _program(arguments)) as server,
    ):
        run_load = measure_cpu if arguments.no_model else measure
        report = run_load(server, clips, settings, Path(name), progress(arguments))
    write_stdout(live_table(report))
    write_stdout(json_line("live", {"model": arguments.model, "settings": settings, "report": report}) + "\n")
    return 0 if all(load.is_faithful for load in report.loads) else 1


def _program(arguments: argparse.Namespace) -> str:
    if not arguments.no_model:
        return "choral"
    return NULL_ENGINE_SERVER if arguments.engine_process else NULL_SERVER


if __name__ == "__main__":
    run_script(
        __doc__, add_arguments, run, epilog="exit codes: 0 every final text equals its joined deltas, 1 otherwise"
    )
