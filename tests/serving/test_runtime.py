"""The runtime: many inputs in processes or on threads, results as they finish, errors as values."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import choral
from choral.audio.recording import Recording
from choral.errors import AudioError, AudioNotFound, BadSamples, EngineClosed, StorageError, UsageError
from choral.options import TranscribeOptions
from choral.serving import runtime_plan
from choral.serving.runtime_plan import plan_runtime
from choral.transcript import Transcript
from request_helpers import Followed, is_alive, shape_of, wait_until

SHORT = TranscribeOptions(temperature=0.0, max_tokens=8)


@pytest.mark.parametrize("processes", [0, 2])
def test_transcribe_many(model: choral.Model, speech_clips: list[Path], processes: int) -> None:
    expected = {path: shape_of(model.transcribe(path, SHORT)) for path in speech_clips}
    taken: list[object] = []

    def inputs() -> Iterator[object]:
        for audio in [*speech_clips, "missing.wav", np.zeros((2, 2)), io.BytesIO(speech_clips[0].read_bytes())]:
            taken.append(audio)
            yield audio

    found = {}
    for audio, outcome in model.transcribe_many(inputs(), SHORT, processes=processes):
        found[id(audio)] = outcome
    assert len(found) == len(taken) == len(speech_clips) + 3
    assert [shape_of(found[id(audio)]) for audio in taken[:5]] == list(expected.values())
    assert [type(found[id(audio)]) for audio in taken[5:]] == [AudioNotFound, BadSamples, Transcript]
    assert shape_of(found[id(taken[7])]) == expected[speech_clips[0]]


def test_atranscribe_many(model: choral.Model, speech_clips: list[Path]) -> None:
    async def run() -> dict[Path, choral.Transcript]:
        many = model.atranscribe_many([*speech_clips, Path("missing.wav")], SHORT, processes=2)
        return {result.audio: result async for result in many}

    results = asyncio.run(run())
    assert {path: shape_of(results[path].transcript) for path in speech_clips} == {
        path: shape_of(model.transcribe(path, SHORT)) for path in speech_clips
    }
    with pytest.raises(AudioNotFound):
        _ = results[Path("missing.wav")].transcript


@pytest.mark.parametrize("processes", [0, 1])
def test_inputs_are_taken_as_results_are(model: choral.Model, jfk: Path, processes: int) -> None:
    """Leaving the loop cancels what runs."""
    n_taken = 0

    def inputs() -> Iterator[Path]:
        nonlocal n_taken
        while True:
            n_taken += 1
            yield jfk

    runtime = model.runtime(processes=processes)
    runtime.n_requests, n_usual = 3, runtime.n_requests
    try:
        many = runtime.transcribe_many(inputs(), SHORT, "batch")
        for n_results, _ in zip(range(4), many, strict=False):
            assert n_taken == n_results + 3
        many.close()
        engine = model.transcriber.engine
        wait_until(lambda: engine.n_in_flight == 0)
    finally:
        runtime.n_requests = n_usual


def test_options_are_checked_before_anything_starts(model: choral.Model) -> None:
    with pytest.raises(UsageError, match="unknown option"):
        model.transcribe_many([], no_such_option=1)
    with pytest.raises(UsageError, match="priority"):
        model.transcribe_many([], priority="urgent")
    assert list(model.transcribe_many([])) == []


def test_a_recording_can_be_shared_and_stays_open(model: choral.Model, jfk: Path) -> None:
    with Recording.open(jfk) as recording:
        first, second = model.transcribe_many([recording, recording], SHORT, processes=0)
        assert shape_of(first.transcript) == shape_of(second.transcript)
        request = Followed(model.runtime(processes=0), recording)
        request.cancel()
        assert model.transcribe(recording, SHORT).text


def test_events_on_threads_are_those_of_processes(model: choral.Model, jfk: Path, tmp_path: Path) -> None:
    here, there = [Followed(model.runtime(processes=n), jfk, SHORT) for n in (0, 1)]
    assert shape_of(here.result()) == shape_of(there.result())
    assert [each.text for each in here.segments] == [each.text for each in there.segments]
    assert here.progress[-1] == there.progress[-1] == (11.0, 11.0)
    assert here.opened[0].duration_s == there.opened[0].duration_s == 11.0
    for processes in (0, 1):
        (tmp_path / "text.mp3").write_bytes(b"no sound at all " * 100)
        with pytest.raises(AudioError, match="is not audio"):
            Followed(model.runtime(processes=processes), tmp_path / "text.mp3").result()


def test_closing_the_model_ends_its_processes(tiny_en_pt: Path, jfk: Path) -> None:
    with choral.load(tiny_en_pt, device="cpu") as model:
        results = model.transcribe_many([jfk] * 50, SHORT, processes=1)
        next(results)
        pids = model.runtime(processes=1)._pool.pids
        assert len(pids) == 1
    assert not any(map(is_alive, pids))
    with pytest.raises(EngineClosed):
        list(results)  # those that were done before are still there


@pytest.mark.parametrize(
    ("device", "n_inputs", "n_cores", "n_processes"),
    [
        ("cuda:0", None, 16, 15),
        ("cuda:0, cuda:1", 100, 8, 7),
        ("cuda:0", 1, 16, 0),
        ("cuda:0", 9, 2, 0),
        ("cpu", 9, 64, 0),
    ],
)
def test_plan(
    monkeypatch: pytest.MonkeyPatch, device: str, n_inputs: int | None, n_cores: int, n_processes: int
) -> None:
    monkeypatch.setattr(runtime_plan, "n_usable_cores", lambda: n_cores)
    plan = plan_runtime(device, n_inputs)
    assert plan.n_processes == n_processes
    assert plan.reason
    assert plan_runtime(device, n_inputs, 3).n_processes == 3


def test_full_disk_for_long_audio_is_retryable(model: choral.Model, jfk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("choral.audio.samples.temporary_file", lambda: open("/dev/full", "r+b"))  # noqa: SIM115
    monkeypatch.setattr("choral.serving.local_requests.MAX_MEMORY_S", 0.0)
    with pytest.raises(StorageError, match="no space left") as caught:
        Followed(model.runtime(processes=0), jfk).result()
    assert caught.value.is_retryable
