"""What a short clip waits for while a long file is in the engine: fairly shared, and first come, first served.

The clip is sent again and again to an idle engine, then beside the file, and then in the file's own name. The last is
first come, first served: windows of one caller are taken in the order they came, so the clip waits behind all windows
that the file has in the engine at that moment. Nothing else differs. The time counts from the samples to the text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median

from choral.audio.recording import Recording
from choral.bench.material import Material
from choral.engine.engine_loop import StepRecord
from choral.engine.group import AnyEngine
from choral.engine.window import Caller
from choral.errors import UsageError
from choral.longform.transcriber import Transcriber, Transcription
from choral.types import TranscribeOptions

CLIP_S, FILE_S = 5.0, 3600.0
N_SENDS = 9
MOST_TIMES_IDLE = 2.5
PAUSE_S = 1.0  # between two sends, so that they meet the file at different moments
WARM_UP_SENDS = 2

OnSend = Callable[[str, float], None]


@dataclass(frozen=True)
class Waits:
    """How long the sends took, and the longest step of the engine meanwhile."""

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
class Fairness:
    idle: Waits
    fair: Waits
    in_line: Waits  # first come, first served

    @property
    def bound_s(self) -> float:
        """The most that the clip may take beside the file."""
        return MOST_TIMES_IDLE * self.idle.median_s + self.fair.longest_step_s

    @property
    def holds(self) -> bool:
        return self.fair.worst_s <= self.bound_s


class StepWatch:
    """The longest step, and whether the file had one."""

    def __init__(self, file_caller: Caller | None) -> None:
        self.longest: tuple[float, str] = (0.0, "none")
        self.has_begun = threading.Event()
        self._file_caller = file_caller

    def __call__(self, record: StepRecord) -> None:
        self.longest = max(self.longest, (record.run_s, type(record.step).__name__))
        if any(task.caller is self._file_caller for task in record.step.tasks):
            self.has_begun.set()


class Enough(Exception):
    """The file has done its part."""


class FairnessBench:
    """The engine must be the transcriber's, and have nothing else to do."""

    def __init__(
        self,
        engine: AnyEngine,
        transcriber: Transcriber,
        material: Material,
        *,
        max_tokens: int | None = None,
        on_send: OnSend = lambda name, seconds: None,
    ) -> None:
        self._engine, self._transcriber, self._material = engine, transcriber, material
        # One try only: whether a retry is needed is chance, and would hide what is measured.
        self._options = TranscribeOptions(language="en", temperature=0.0, max_tokens=max_tokens)
        self._on_send = on_send
        self._n_sent = 0

    def measure(self, n_sends: int, file_s: float) -> Fairness:
        """First come, first served is measured with a third of the sends: each takes long."""
        with Recording.open(self._material.long(file_s)) as file:
            for _ in range(WARM_UP_SENDS):
                self._send(Caller())
            idle = self._idle(n_sends)
            fair = self._beside(file, "beside the file", n_sends, Caller(), Caller)
            line = Caller()
            in_line = self._beside(file, "first come, first served", max(1, n_sends // 3), line, lambda: line)
        return Fairness(idle, fair, in_line)

    def _idle(self, n_sends: int) -> Waits:
        watch = StepWatch(None)
        self._engine.observe(watch)
        seconds = [self._told("idle", self._send(Caller())) for _ in range(n_sends)]
        self._engine.observe(None)
        return Waits(tuple(seconds), *watch.longest)

    def _beside(
        self, recording: Recording, name: str, n_sends: int, file_caller: Caller, clip_caller: Callable[[], Caller]
    ) -> Waits:
        watch = StepWatch(file_caller)
        self._engine.observe(watch)
        self._engine.clear_cache()  # what was encoded of the file before must not help it now
        seconds = []
        with self._file_under_way(recording, file_caller) as file:
            # Speech is looked for in the whole file before its first window: no part of what is measured.
            file.add_done_callback(lambda _: watch.has_begun.set())
            watch.has_begun.wait()
            for _ in range(n_sends):
                time.sleep(PAUSE_S)
                seconds.append(self._told(name, self._send(clip_caller())))
                if file.done():
                    file.result()  # why it ended, if it failed
                    raise UsageError("the file was done before the clips were: make it longer with --file-s")
        self._engine.observe(None)
        return Waits(tuple(seconds), *watch.longest)

    def _told(self, name: str, seconds: float) -> float:
        self._on_send(name, seconds)
        return seconds

    def _send(self, caller: Caller) -> float:
        """A clip nobody sent before, from its samples to its text."""
        samples = self._material.clip(self._n_sent, CLIP_S)
        self._n_sent += 1
        started_s = time.perf_counter()
        with Recording.open(samples) as clip:
            for _ in Transcription(self._transcriber, clip, self._options, None, caller):
                pass
        return time.perf_counter() - started_s

    @contextmanager
    def _file_under_way(self, file: Recording, caller: Caller) -> Iterator[Future[None]]:
        is_enough = threading.Event()
        with ThreadPoolExecutor(1) as thread:
            future = thread.submit(self._transcribe_file, file, caller, is_enough)
            try:
                yield future
            finally:
                is_enough.set()

    def _transcribe_file(self, file: Recording, caller: Caller, is_enough: threading.Event) -> None:
        def stop_when_enough(done_s: float, total_s: float) -> None:
            if is_enough.is_set():
                raise Enough

        batched = replace(self._options, mode="batched", vad=self._material.is_speech)
        try:
            for _ in Transcription(self._transcriber, file, batched, stop_when_enough, caller):
                pass
        except Enough:
            return
