"""How long does a 5 s clip take while an hour of audio is in the engine?

Sends the clip to an idle engine, then while the file is transcribed, and then under the file's own caller. The last is
first come, first served: windows of one caller run in the order they arrive, so the clip waits behind all windows of
the file that are in the engine. Times run from samples to text. AUDIO is what clip and file are made from: files or
folders of speech (default: a sample of speech).
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median

from choral.audio.recording import Recording
from choral.bench.report import bars, json_line, verdict
from choral.bench.workload import Workload
from choral.cli.arguments import Parser, describe
from choral.cli.bench import progress, read_workload, require_counts
from choral.cli.bench_engine import EngineSubject
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import load_model
from choral.engine.engine_loop import StepRecord
from choral.engine.group import LocalEngine, as_local
from choral.engine.window import Caller
from choral.errors import UsageError
from choral.longform.transcriber import Transcriber, Transcription
from choral.options import TranscribeOptions
from support.script import run_script

CLIP_S = 5.0
MAX_TIMES_IDLE = 2.5
PAUSE_S = 1.0  # between two clips, so that they arrive at different points of the file
N_WARM_UP = 2


@dataclass(frozen=True)
class Latencies:
    """How long the clips took, and the longest engine step meanwhile."""

    seconds: tuple[float, ...]
    longest_step_s: float
    longest_step: str  # its kind

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    @property
    def worst_s(self) -> float:
        return max(self.seconds)


@dataclass(frozen=True)
class FairnessResult:
    idle: Latencies
    fair: Latencies
    first_come: Latencies

    @property
    def bound_s(self) -> float:
        """The longest that the clip may take beside the file."""
        return MAX_TIMES_IDLE * self.idle.median_s + self.fair.longest_step_s

    @property
    def holds(self) -> bool:
        return self.fair.worst_s <= self.bound_s


class StepObserver:
    """Keeps the longest step, and whether the file had one."""

    def __init__(self, file_caller: Caller | None) -> None:
        self.longest: tuple[float, str] = (0.0, "none")
        self.file_has_begun = threading.Event()
        self._file_caller = file_caller

    def __call__(self, record: StepRecord) -> None:
        self.longest = max(self.longest, (record.run_s, type(record.step).__name__))
        if any(task.caller is self._file_caller for task in record.step.tasks):
            self.file_has_begun.set()


class FileStopped(Exception):
    """Ends the transcription of the file once all clips were sent."""


class FairnessBench:
    """The engine must be the transcriber's, and otherwise idle."""

    def __init__(
        self,
        engine: LocalEngine,
        transcriber: Transcriber,
        workload: Workload,
        *,
        max_tokens: int | None = None,
        on_clip: Callable[[str, float], None] = lambda name, seconds: None,
    ) -> None:
        self._engine, self._transcriber, self._workload = engine, transcriber, workload
        # No temperature fallback: whether a retry happens is chance, and would hide the effect of scheduling.
        self._options = TranscribeOptions(language="en", temperature=0.0, max_tokens=max_tokens)
        self._on_clip = on_clip
        self._n_sent = 0

    def measure(self, n_clips: int, file_s: float) -> FairnessResult:
        """First come, first served gets a third of the clips, because each takes long."""
        with Recording.open(self._workload.long(file_s)) as file:
            for _ in range(N_WARM_UP):
                self._send_clip(Caller())
            idle = self._measure_idle(n_clips)
            fair = self._measure_beside(file, "beside the file", n_clips, Caller(), Caller)
            shared = Caller()
            name = "first come, first served"
            first_come = self._measure_beside(file, name, max(1, n_clips // 3), shared, lambda: shared)
        return FairnessResult(idle, fair, first_come)

    def _measure_idle(self, n_clips: int) -> Latencies:
        observer = StepObserver(None)
        self._engine.observe(observer)
        seconds = [self._timed_clip("idle", Caller()) for _ in range(n_clips)]
        self._engine.observe(None)
        return Latencies(tuple(seconds), *observer.longest)

    def _measure_beside(
        self, recording: Recording, name: str, n_clips: int, file_caller: Caller, clip_caller: Callable[[], Caller]
    ) -> Latencies:
        observer = StepObserver(file_caller)
        self._engine.observe(observer)
        self._engine.clear_cache()  # so that the file is encoded again
        seconds = []
        with self._file_in_progress(recording, file_caller) as file:
            # Voice detection runs over the whole file before its first window; it is not measured here.
            file.add_done_callback(lambda _: observer.file_has_begun.set())
            observer.file_has_begun.wait()
            for _ in range(n_clips):
                time.sleep(PAUSE_S)
                seconds.append(self._timed_clip(name, clip_caller()))
                if file.done():
                    file.result()  # raises the error if it failed
                    raise UsageError("the file was done before the clips were: make it longer with --file-s")
        self._engine.observe(None)
        return Latencies(tuple(seconds), *observer.longest)

    def _timed_clip(self, name: str, caller: Caller) -> float:
        seconds = self._send_clip(caller)
        self._on_clip(name, seconds)
        return seconds

    def _send_clip(self, caller: Caller) -> float:
        """Transcribe a clip that differs from all earlier ones."""
        samples = self._workload.clip(self._n_sent, CLIP_S)
        self._n_sent += 1
        started_s = time.perf_counter()
        with Recording.open(samples) as clip:
            for _ in Transcription(self._transcriber, clip, self._options, None, caller):
                pass
        return time.perf_counter() - started_s

    @contextmanager
    def _file_in_progress(self, file: Recording, caller: Caller) -> Iterator[Future[None]]:
        stop = threading.Event()
        with ThreadPoolExecutor(1) as thread:
            future = thread.submit(self._transcribe_file, file, caller, stop)
            try:
                yield future
            finally:
                stop.set()

    def _transcribe_file(self, file: Recording, caller: Caller, stop: threading.Event) -> None:
        def raise_if_stopped(done_s: float, total_s: float) -> None:
            if stop.is_set():
                raise FileStopped

        batched = replace(self._options, mode="batched", vad=self._workload.is_speech)
        try:
            for _ in Transcription(self._transcriber, file, batched, raise_if_stopped, caller):
                pass
        except FileStopped:
            return


def fairness_report(subject: EngineSubject, result: FairnessResult, file_s: float) -> str:
    idle_s = result.idle.median_s
    by_name = {
        "idle engine": result.idle,
        "beside the file": result.fair,
        "first come first served": result.first_come,
    }
    rows = [["5 s clip", "clips", "median s", "worst s", "× idle", "longest step"]]
    for name, one in by_name.items():
        seconds = [f"{one.median_s:.2f}", f"{one.worst_s:.2f}", f"{one.median_s / idle_s:.2f}"]
        rows.append([name, str(len(one.seconds)), *seconds, f"{one.longest_step_s:.2f} s ({one.longest_step})"])
    medians = bars([(name, one.median_s, f"{one.median_s:.2f} s") for name, one in by_name.items()])
    bound = verdict(f"worst within {MAX_TIMES_IDLE} × idle + one step = {result.bound_s:.2f} s", holds=result.holds)
    fields = {
        **asdict(subject),
        "file_s": file_s,
        "idle": result.idle,
        "fair": result.fair,
        "first_come_first_served": result.first_come,
        "ratio": result.fair.median_s / idle_s,
        "ratio_first_come": result.first_come.median_s / idle_s,
        "bound_s": result.bound_s,
        "holds": result.holds,
    }
    title = f"{subject.title}; a file of {file_s:g} s from {subject.workload}\n\n"
    return f"{title}{format_table(rows, numbers=range(1, 5))}\n{medians}\n{bound}{json_line('fairness', fields)}\n"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("audio", nargs="*", metavar="AUDIO", help=argparse.SUPPRESS)
    parser.add_argument("--sends", type=int, default=9, metavar="N", help=describe("how often the clip is sent", 9))
    parser.add_argument(
        "--file-s", type=float, default=3600.0, metavar="SECONDS", help=describe("length of the file", 3600)
    )


def run(arguments: argparse.Namespace) -> int:
    require_counts(arguments, sends=1)
    if not 60 <= arguments.file_s <= 36_000:
        raise UsageError("file-s must be from 60 to 36000 seconds")
    workload, log = read_workload(arguments.audio), progress(arguments)
    with closing(load_model(arguments)) as model:
        engine = as_local(model._engine)
        bench = FairnessBench(
            engine, model._transcriber, workload, on_clip=lambda name, seconds: log(f"{name}: {seconds:.2f} s")
        )
        result = bench.measure(arguments.sends, arguments.file_s)
        subject = EngineSubject.of(arguments, engine, workload)
    write_stdout(fairness_report(subject, result, arguments.file_s))
    return 0


if __name__ == "__main__":
    run_script(__doc__, add_arguments, run, usage="[AUDIO …] [options]")
