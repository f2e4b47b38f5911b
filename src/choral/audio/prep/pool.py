"""The prep pool: audio in, recordings out, everything on CPU cores that is not the engine's.

Downloads wait in threads, decoding works in processes of its own: a file that crashes the decoder, hangs it or eats
memory fails by itself and nothing else does. The futures can be cancelled at any time until they are done, also while
the work is under way. Errors are those of `Recording.open`, with the same texts.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

from choral.audio.fetch import fetch
from choral.audio.prep.child import Decode, decode_plainly, name_of
from choral.audio.prep.crew import Crew
from choral.audio.prep.job import AudioPlace, Job, OpenFile, Prepared
from choral.audio.prep.messages import Answer, Order
from choral.audio.prep.places import keep_bytes, open_path, share_file
from choral.audio.prep.process import ProcessDied
from choral.audio.prep.room import Room
from choral.audio.prep.settings import PrepSettings
from choral.audio.recording import Recording
from choral.audio.samples import temporary_file
from choral.audio.source import Source, require_http, scheme_of, suffix_of_url
from choral.errors import NotAudio
from choral.remote.guard import Guard
from choral.remote.transport import shown
from choral.types import Loudness

__all__ = ["AudioPlace", "Backlog", "OpenFile", "PrepPool", "Prepared"]

FETCH_MEMORY_BYTES = 2**20  # of each download; the rest goes to a file
MAX_KILLS = 2  # a process that someone kills is replaced once; a file that gets two killed is the reason


@dataclass(frozen=True)
class Backlog:
    """How many jobs are in each phase, and the memory of recordings that are not closed yet."""

    waiting: int
    fetching: int
    fetched: int  # and waiting for a process
    decoding: int
    memory_bytes: int


class PrepPool:
    def __init__(self, settings: PrepSettings | None = None, *, decode: Decode = decode_plainly) -> None:
        """`decode` is what the processes do with a file: a function at the top of a module."""
        self.settings = settings or PrepSettings()
        self._guard = Guard(self.settings.allowed_hosts)
        self._room = Room(self.settings.memory_bytes)
        self._crew = Crew(self.settings.n_processes, name_of(decode))
        self._fetchers = ThreadPoolExecutor(self.settings.fetches, "choral-fetch")
        self._openers = ThreadPoolExecutor(self.settings.n_processes, "choral-prep")
        self._lock = threading.Lock()
        self._jobs: set[Job] = set()
        self._is_closed = False

    def submit(self, audio: AudioPlace, *, loudness: Loudness = "off") -> Future[Prepared]:
        """With `loudness` it is measured too, so that transcribing with that option finds it done."""
        scheme = scheme_of(audio)
        if scheme is not None:
            require_http(str(audio), scheme)
        job = Job(audio, None if loudness == "off" else loudness)
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the prep pool is closed")
            self._jobs.add(job)
        (self._fetchers if scheme else self._openers).submit(self._prepare, job)
        return job.future

    @property
    def backlog(self) -> Backlog:
        with self._lock:
            phases = Counter(job.phase for job in self._jobs if not job.future.done())
        return Backlog(
            **{phase: phases[phase] for phase in ("waiting", "fetching", "fetched", "decoding")},
            memory_bytes=self._room.used_bytes,
        )

    def close(self) -> None:
        """Cancels what is not done; recordings that were given out stay as they are."""
        with self._lock:
            self._is_closed = True
            jobs = list(self._jobs)
        for job in jobs:
            job.future.cancel()
        self._fetchers.shutdown()
        self._openers.shutdown()
        self._crew.close()

    def __enter__(self) -> PrepPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self, job: Job) -> None:
        try:
            job.require_wanted()
            start_s = time.perf_counter()
            with self._opened(job) as source:
                fetch_s = time.perf_counter() - start_s
                job.finish(self._decoded(job, source, fetch_s))
        except BaseException as error:  # whatever it is, who waits for the future must hear of it
            job.fail(error)
        finally:
            with self._lock:
                self._jobs.discard(job)

    def _opened(self, job: Job) -> Source:
        settings = self.settings
        if isinstance(job.audio, bytes):
            return keep_bytes(job.audio, settings.max_bytes)
        if isinstance(job.audio, OpenFile):
            return share_file(job.audio.name, job.audio.file, settings.max_bytes)
        if scheme_of(job.audio) is None:
            return open_path(os.fspath(job.audio), settings.roots, settings.max_bytes)
        url = str(job.audio)
        job.phase = "fetching"
        file = fetch(
            url,
            limit_bytes=settings.max_bytes,
            stall_timeout_s=settings.stall_timeout_s,
            total_timeout_s=settings.fetch_timeout_s,
            guard=self._guard,
            lifeline=job.lifeline,
            memory_bytes=FETCH_MEMORY_BYTES,
        )
        return Source(shown(url), suffix_of_url(url), file, is_ours=True)

    def _decoded(self, job: Job, source: Source, fetch_s: float) -> Prepared:
        output = temporary_file()
        try:
            answer = self._answer(job, source, output.fileno())
            answer.raise_error()
            recording = Recording(
                self._room.settle(output, answer.n_samples),
                n_samples=answer.n_samples,
                peak=answer.peak,
                name=source.name,
                warnings=answer.warnings,
            )
        except BaseException:
            output.close()
            raise
        if job.loudness is not None:
            recording.levels_db[job.loudness] = answer.level_db
        return Prepared(recording, fetch_s, answer.decode_s)

    def _answer(self, job: Job, source: Source, output: int) -> Answer:
        order = Order(source.name, source.suffix, self.settings.max_audio_s, job.loudness)
        limit_s = self.settings.decode_timeout_s
        n_kills = 0
        while True:
            job.phase = "fetched"
            try:
                with self._crew.one() as process, job.working(process):
                    return process.run(order, source.file.fileno(), output, limit_s)
            except TimeoutError as error:
                raise NotAudio(
                    f"{source.name} could not be decoded in {limit_s:g} s: "
                    "convert it to wav or flac, or cut it into parts"
                ) from error
            except ProcessDied as death:
                job.require_wanted()
                n_kills += death.was_killed
                if not death.was_killed or n_kills == MAX_KILLS:
                    raise _crashed(source.name, death) from death
                os.ftruncate(output, 0)
                os.lseek(output, 0, os.SEEK_SET)


def _crashed(name: str, death: ProcessDied) -> NotAudio:
    return NotAudio(f"{name} ended the decoder ({death.reason}), it is damaged: convert it to wav or flac")
