"""Files on disk to text: throughput of a folder, with the engine's own rate measured in the same run.

The recordings are joined from clips of speech, each in another order and with its own noise, and written as mp3: no two
windows are equal, so no cache helps.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from choral.api import Model
from choral.audio.constants import SAMPLE_RATE
from choral.bench import process_tree
from choral.bench.clips import AudioClip, join_clips, noisy
from choral.bench.gpu_load import LONG_TOKENS, SATURATED_WINDOWS, GpuLoadGenerator
from choral.bench.random_model import SHAPES, random_engine_and_tokenizer
from choral.bench.synthetic_audio import AUDIO_FORMATS, FileFormat, write_samples
from choral.common.processor import n_usable_cores
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.longform.transcriber import Transcriber
from choral.options import TranscribeOptions
from choral.serving.request_events import RequestEvent, RequestFailed, RequestFinished, SegmentReady, TranscribeRequest
from choral.serving.runtime import Runtime

STEREO_MP3 = AUDIO_FORMATS[0]  # 44.1 kHz: decoding takes three times as long
MONO_MP3 = FileFormat("mp3", "mp3", "libmp3lame", SAMPLE_RATE, "mono")


@dataclass(frozen=True)
class FilesResult:
    """One load; the field names are those of the JSON line."""

    n_files: int
    audio_s: float
    wall_s: float
    first_text_s: float  # from the start to the first segment of any file
    windows: int
    engine_busy: float  # share of the time
    cores: float  # in use, of all processes together

    @property
    def times_real_time(self) -> float:
        return self.audio_s / self.wall_s


def write_files(
    clips: Sequence[AudioClip], folder: Path, n_files: int, seconds: float, form: FileFormat = MONO_MP3
) -> list[Path]:
    """Encoded in processes: libmp3lame is slower than everything that is measured here."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{index:04d}.{form.suffix}" for index in range(n_files)]
    write = partial(write_file, clips, seconds, form)
    with ProcessPoolExecutor(n_usable_cores(), multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(write, paths, range(n_files)))


def write_file(clips: Sequence[AudioClip], seconds: float, form: FileFormat, path: Path, index: int) -> Path:
    first = index % len(clips)
    joined = join_clips([*clips[first:], *clips[:first]], seconds)
    write_samples(path, form, noisy(joined.samples, (index,)))
    return path


def random_model(shape: str, settings: EngineSettings) -> Model:
    engine, tokenizer = random_engine_and_tokenizer(shape, settings)
    return Model(f"random {shape}", engine, Transcriber(engine, tokenizer, SHAPES[shape]))


def forced_options(model: Model) -> TranscribeOptions:
    """Every window has the number of tokens of `choral bench gpu`, whatever the weights say."""
    tokenizer = model.transcriber.tokenizer
    return TranscribeOptions(
        mode="batched",
        language="en",
        timestamps=False,
        temperature=(0.0,),
        max_tokens=LONG_TOKENS,
        suppress_tokens=(-1, tokenizer.eot),
        no_speech_threshold=None,
        logprob_threshold=None,  # random weights are sure of nothing, and repeat themselves: no window is discarded
        compression_ratio_threshold=None,
    )


def saturated_windows_per_s(model: Model) -> float:
    """Windows of the engine alone, with samples in memory and the same number of tokens."""
    engine = model.transcriber.engine
    assert isinstance(engine, Engine)
    load = GpuLoadGenerator(engine, model.transcriber.tokenizer)
    n_windows = 16 if engine.device == "cpu" else SATURATED_WINDOWS
    load.run_windows(n_windows)  # warm-up
    return n_windows / load.run_windows(n_windows)


def measure_files(
    model: Model, paths: Sequence[Path], options: TranscribeOptions, processes: int | None = None
) -> FilesResult:
    """All files at once, as `choral transcribe FOLDER` runs them; processes are started before the clock."""
    runtime = model.runtime(len(paths), processes)
    run_files(runtime, paths[: max(1, runtime.plan.n_processes)], options)
    model.transcriber.engine.clear_cache()  # the files that come again have to be encoded again
    before, cpu_before_s, started_s = model.stats, process_tree.cpu_s(os.getpid()), time.perf_counter()
    audio_s, first_text_s = run_files(runtime, paths, options)
    wall_s = time.perf_counter() - started_s
    cpu_s, after = process_tree.cpu_s(os.getpid()) - cpu_before_s, model.stats
    return FilesResult(
        n_files=len(paths),
        audio_s=audio_s,
        wall_s=wall_s,
        first_text_s=first_text_s - started_s,
        windows=after.windows - before.windows,
        engine_busy=(after.busy_s - before.busy_s) / wall_s,
        cores=cpu_s / wall_s,
    )


def run_files(runtime: Runtime, paths: Sequence[Path], options: TranscribeOptions) -> tuple[float, float]:
    """Seconds of audio transcribed, and when the first segment arrived."""
    ended: SimpleQueue[RequestEvent] = SimpleQueue()
    first_text_s: list[float] = []

    def on_event(event: RequestEvent) -> None:
        if isinstance(event, SegmentReady) and not first_text_s:
            first_text_s.append(time.perf_counter())
        elif isinstance(event, RequestFinished | RequestFailed):
            ended.put(event)

    waiting = [TranscribeRequest(audio=path, options=options) for path in reversed(paths)]
    for _ in range(min(len(waiting), runtime.n_requests)):
        runtime.start(waiting.pop(), on_event)
    audio_s = 0.0
    for _ in paths:
        event = ended.get()
        if isinstance(event, RequestFailed):
            raise event.error
        assert isinstance(event, RequestFinished)
        audio_s += event.transcript.duration
        if waiting:
            runtime.start(waiting.pop(), on_event)
    return audio_s, first_text_s[0] if first_text_s else time.perf_counter()
