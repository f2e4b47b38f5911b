"""The engine's thread: new windows join, all that are being decoded go one token further, finished ones leave.

It knows nothing of the engine that started it, so that a forgotten engine can go. A window that fails, or is no longer
wanted, leaves alone.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from choral.engine.scheduler import Scheduler
from choral.engine.window import Align, Decode, DetectLanguage, Window
from choral.errors import ChoralError, EngineClosed, WindowFailed

if TYPE_CHECKING:
    from torch import Tensor

    from choral.engine.decoding import Decoding
    from choral.engine.torch_runner import TorchRunner

CACHED_WINDOWS = 32


@dataclass(frozen=True, eq=False)
class Job:
    window: Window[Any]
    future: Future[Any]

    @property
    def n_slots(self) -> int:
        work = self.window.work
        return work.n_candidates if isinstance(work, Decode) else 1


class Worker:
    def __init__(self, runner: TorchRunner) -> None:
        self.runner = runner
        self.queue: SimpleQueue[tuple[Hashable, Job] | None] = SimpleQueue()
        self.unwanted: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        self.waiting: Scheduler[Job] = Scheduler(lambda job: job.n_slots)
        self.running: dict[Job, Decoding] = {}
        self.encoded: OrderedDict[bytes, Tensor] = OrderedDict()
        self.n_windows = self.n_encoded = self.n_hits = self.n_steps = 0

    def run(self) -> None:
        while self.receive():
            self.admit()
            self.decode()
        left = [job for job in self.waiting.draw_all() if job.future.set_running_or_notify_cancel()]
        self.fail([*self.running, *left], EngineClosed("the model was closed before this was done"))
        self.encoded.clear()
        del self.runner  # and its weights

    def receive(self) -> bool:
        """Takes in what was submitted; waits only when there is nothing to do. False: it is over."""
        is_idle = not self.running and not len(self.waiting)
        try:
            while True:
                item = self.queue.get(block=is_idle)
                if item is None:
                    return False
                self.waiting.add(*item)
                is_idle = False
        except Empty:
            return True

    def admit(self) -> None:
        """New windows join: their audio is encoded together, and their prompts are run."""
        n_free = self.runner.n_slots - sum(job.n_slots for job in self.running)
        drawn = self.waiting.draw(n_free, self.runner.encode_together, is_idle=not self.running)
        jobs = [job for job in drawn if job.future.set_running_or_notify_cancel()]
        wanted = [job for job in jobs if self.guard(job, partial(self.require_wanted, job))]
        self.guard_all(wanted, lambda: self.encode(wanted))
        for job in wanted:
            if not job.future.done():
                self.guard(job, partial(self.begin, job))

    def encode(self, jobs: list[Job]) -> None:
        audios = {job.window.audio.key: job.window.audio for job in jobs}
        missing = [audio for key, audio in audios.items() if key not in self.encoded]
        self.n_hits += len(jobs) - len(missing)
        if missing:
            mels = np.stack([audio.log_mel(self.runner.dims.n_mels) for audio in missing])
            features = self.runner.encode(mels)
            for i, audio in enumerate(missing):
                self.encoded[audio.key] = features[i : i + 1]
            self.n_encoded += len(missing)
        for key in audios:
            self.encoded.move_to_end(key)
        while len(self.encoded) > max(CACHED_WINDOWS, len(audios)):
            self.encoded.popitem(last=False)

    def begin(self, job: Job) -> None:
        features = self.encoded[job.window.audio.key]
        match job.window.work:
            case Decode() as work:
                self.running[job] = self.runner.start(features, work, job.window.audio)
            case Align() as work:
                self.complete(job, self.runner.align(features, work))
            case DetectLanguage():
                self.complete(job, self.runner.detect_language(features))
            case other:
                raise TypeError(f"the engine does not know the work {other!r}")

    def decode(self) -> None:
        """One token further: every window chooses, those that are done leave, the network runs for the others."""
        for job in list(self.running):
            self.guard(job, partial(self.choose, job))
        going_on = list(self.running)
        if going_on:
            self.n_steps += 1
            self.guard_all(going_on, lambda: self.runner.step([self.running[job] for job in going_on]))

    def choose(self, job: Job) -> None:
        self.require_wanted(job)
        if self.runner.choose(self.running[job]):
            self.complete(job, self.runner.finish(self.running[job]))

    def require_wanted(self, job: Job) -> None:
        if job.future in self.unwanted:
            raise CancelledError

    def complete(self, job: Job, result: object) -> None:
        self.leave(job)
        job.future.set_result(result)

    def leave(self, job: Job) -> None:
        self.running.pop(job, None)
        self.n_windows += 1

    def guard(self, job: Job, action: Callable[[], None]) -> bool:
        """Runs what concerns one window: if it fails, that window fails and no other."""
        return self.guard_all([job], action)

    def guard_all(self, jobs: Iterable[Job], action: Callable[[], None]) -> bool:
        try:
            action()
        except (ChoralError, CancelledError) as error:
            self.fail(jobs, error)
        except RuntimeError as error:  # torch's errors: out of memory, a lost device
            failure = WindowFailed(f"the device failed on this window: {error}")
            failure.__cause__ = error
            self.fail(jobs, failure)
        except BaseException as error:  # a bug: the caller must see it, and the thread must live on
            self.fail(jobs, error)
        else:
            return True
        return False

    def fail(self, jobs: Iterable[Job], error: BaseException) -> None:
        for job in jobs:
            self.leave(job)
            job.future.set_exception(error)
