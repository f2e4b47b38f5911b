"""`Service.transcribe` and cancellation, text accumulation, and memory housekeeping."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import choral
from choral.audio.recording import OnProgress, decode_into, raise_if_cancelled
from choral.audio.samples import SampleSink
from choral.audio.source import AudioSource
from choral.common.aio import cancel_tasks
from choral.common.malloc import frozen_gc, trim_memory_periodically
from choral.errors import AudioEmpty, QueueFull
from choral.options import Channels, TranscribeOptions
from choral.server.responses import TextAccumulator
from choral.server.service import Service
from choral.server.settings import ServerSettings
from choral.serving.input_sources import OpenFile
from choral.serving.runtime import NO_BACKLOG, Runtime
from choral.serving.settings import ServingSettings
from choral.transcript import Segment
from media_files import read_clip, wav
from one_model import service_of


def test_text_accumulator_strips_and_joins() -> None:
    accumulator = TextAccumulator()
    pieces = [accumulator.add(text) for text in ("  ", " One ", "  ", "two. ", " Three ")]
    assert pieces == ["", "One", "", "   two.", "  Three"]
    assert "".join(pieces) == accumulator.text == "One   two.  Three"


def test_frozen_gc_excludes_loaded_objects() -> None:
    before = gc.get_freeze_count()
    with frozen_gc():
        assert gc.get_freeze_count() > before + 1000
    assert gc.get_freeze_count() == 0


def test_memory_is_trimmed_periodically_until_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[float] = []
    monkeypatch.setattr("choral.common.malloc.TRIM_EVERY_S", 0.01)
    monkeypatch.setattr("choral.common.malloc.trim_malloc", lambda: trims.append(time.monotonic()))

    async def run() -> None:
        task = asyncio.create_task(trim_memory_periodically())
        async with asyncio.timeout(20):
            while len(trims) < 3:
                await asyncio.sleep(0.01)
        await cancel_tasks([task])
        n_times = len(trims)
        await asyncio.sleep(0.1)
        assert len(trims) <= n_times + 1  # one may have been under way

    asyncio.run(run())


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_en_pt, compute_type="float32") as loaded:
        yield loaded


def test_cancelled_requests_leave_before_the_next_step(model: choral.Model, jfk: Path, tmp_path: Path) -> None:
    async def run(service: Service, runtime: Runtime, nothing: Path) -> None:
        options = TranscribeOptions(beam_size=5)
        with jfk.open("rb") as file:
            audio = OpenFile("jfk.wav", file)
            task = asyncio.create_task(service.transcribe(audio, options))
            while model.stats.steps == 0:
                await asyncio.sleep(0.01)
            with pytest.raises(QueueFull, match="1 requests are already in progress"):
                await service.transcribe(audio, options)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert service.requests.n_active == 0
            steps, deadline_s = model.stats.steps, time.monotonic() + 60
            while model.stats.cancelled == 0 and time.monotonic() < deadline_s:
                await asyncio.sleep(0.001)
            assert model.stats.cancelled == 1
            assert model.stats.steps <= steps + 2
            with pytest.raises(ZeroDivisionError):
                await service.transcribe(audio, options, on_duration=lambda duration_s: 1 // 0)
            told: list[Segment | float] = []
            transcript = await service.transcribe(
                audio, TranscribeOptions(), on_segment=told.append, on_duration=told.append
            )
            assert told == [transcript.duration, *transcript.segments]
            while runtime.backlog != NO_BACKLOG and time.monotonic() < deadline_s:
                await asyncio.sleep(0.001)
            assert runtime.backlog == NO_BACKLOG  # the refused request is gone too
            with nothing.open("wb+") as empty, pytest.raises(AudioEmpty, match=r"nothing\.mp3 is empty"):
                await service.transcribe(OpenFile("nothing.mp3", empty), options)

    with Runtime.for_service(model.transcriber, ServingSettings(processes=1), 8) as runtime:
        asyncio.run(run(service_of(model, runtime, ServerSettings(queue_limit=1)), runtime, tmp_path / "empty"))


def decode_and_wait(
    sink: SampleSink,
    source: AudioSource,
    max_audio_s: float,
    on_progress: OnProgress | None,
    cancel_event: threading.Event,
    channels: Channels,
) -> tuple[str, ...]:
    """Runs in a request process: decoding ends when there is a file `heard` beside the audio."""
    warnings = decode_into(sink, source, max_audio_s, on_progress, cancel_event, channels)
    while not Path(source.name).with_name("heard").exists():
        raise_if_cancelled(cancel_event)
        time.sleep(0.01)
    return warnings


def test_text_comes_while_audio_is_decoded_unless_it_may_be_refused(
    model: choral.Model, speech_clips: list[Path], tmp_path: Path
) -> None:
    path = tmp_path / "talk.wav"
    path.write_bytes(wav(np.concatenate([read_clip(clip) for clip in speech_clips] * 2)))
    options = TranscribeOptions(mode="batched", temperature=0.0, max_tokens=8)

    async def run(service: Service) -> None:
        told: list[Segment] = []
        told_refusable: list[Segment | float] = []

        def on_segment(segment: Segment) -> None:
            told.append(segment)
            path.with_name("heard").touch()

        with path.open("rb") as file, path.open("rb") as other:
            refusable = service.transcribe(
                OpenFile(str(path), other), options, on_segment=told_refusable.append, on_duration=told_refusable.append
            )
            free = service.transcribe(OpenFile(str(path), file), options, on_segment=on_segment)
            transcript, later = await asyncio.wait_for(asyncio.gather(free, refusable), 200)
        assert told == list(transcript.segments)
        assert told_refusable == [later.duration, *later.segments]
        assert later.text == transcript.text  # scores may differ with the batch

    settings = ServingSettings(processes=1)
    with Runtime.for_service(model.transcriber, settings, 8, decode=decode_and_wait) as runtime:
        asyncio.run(run(service_of(model, runtime, ServerSettings())))
