"""The request pool with a real engine: results, events, inputs and errors equal those of `Model.transcribe`."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import choral
from choral.errors import AudioEmpty, AudioTooLarge, BadSamples, ChoralError, UsageError
from choral.options import TranscribeOptions
from choral.serving.input_sources import OpenFile
from choral.serving.request_pool import NotShareable, RequestBacklog, RequestPool
from local_server import LocalServer
from media_files import Int16Samples, encode, read_clip, wav
from request_helpers import Followed, shape_of, wait_until

EMPTY = RequestBacklog(waiting=0, fetching=0, decoding=0, transcribing=0)


@pytest.mark.parametrize(
    "options",
    [
        TranscribeOptions(word_timestamps=True, token_logprobs=True),
        TranscribeOptions(mode="batched", loudness="ebu", clip_timestamps=(0.5, 25.0), temperature=(0.0, 0.5)),
    ],
)
def test_results_and_events_equal_model_transcribe(
    model: choral.Model, free_pool: RequestPool, speech_clips: list[Path], tmp_path: Path, options: TranscribeOptions
) -> None:
    samples = np.concatenate([read_clip(path) for path in speech_clips])[: 35 * 16_000]
    path = tmp_path / "talk.mp3"
    path.write_bytes(encode(samples, "mp3", "libmp3lame", rate=44_100)[:-2_000])  # it ends early: a warning
    segments: list[choral.Segment] = []
    expected = model.transcribe(path, options, on_segment=segments.append)
    request = Followed(free_pool, path, options)
    assert request.result() == expected
    assert request.segments == segments
    assert len(segments) > 2
    done = [done_s for done_s, _ in request.progress]
    assert done == sorted(done)
    assert request.progress[-1] == (expected.duration, expected.duration)
    (opened,) = request.opened
    assert opened.duration_s == expected.duration
    assert opened.decode_s > 0


def test_64_short_files_at_once(free_pool: RequestPool, model: choral.Model, speech_clips: list[Path]) -> None:
    clips = [speech_clips[i % len(speech_clips)] for i in range(64)]
    options = TranscribeOptions(temperature=0.0, max_tokens=8)
    expected = {path: model.transcribe(path, options) for path in speech_clips}
    requests = [Followed(free_pool, path, options, wants_segments=False, wants_progress=False) for path in clips]
    # Without the scores: their last bits depend on which windows are decoded together.
    assert [shape_of(request.result(120)) for request in requests] == [shape_of(expected[path]) for path in clips]
    assert all(len(request.events) == 2 for request in requests)  # opened, finished
    assert len(free_pool.pids) == 2
    wait_until(lambda: free_pool.backlog == EMPTY)


def test_every_kind_of_input(
    free_pool: RequestPool, model: choral.Model, jfk: Path, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, data, samples = model.transcribe(jfk), jfk.read_bytes(), read_clip(jfk)
    monkeypatch.chdir(jfk.parent)
    floats = samples / np.float32(32768)
    with jfk.open("rb") as file, open(jfk, "rb", buffering=0) as raw, choral.Recording.open(jfk) as recording:
        file.seek(1000)  # a file is read from its beginning
        inputs = [jfk, str(jfk), jfk.name, data, bytearray(data), server.add("/jfk.wav", data), file, raw]
        inputs += [
            OpenFile("jfk.wav", file),
            OpenFile("jfk.wav", io.BytesIO(data)),
            samples,
            floats,
            floats.astype(np.float64),
            recording,
        ]
        for audio in inputs:
            assert Followed(free_pool, audio).result() == expected
        assert recording.samples(0, 10).size == 10
    for audio in (io.BytesIO(data), "/dev/stdin"):
        with pytest.raises(NotShareable):
            Followed(free_pool, audio)


def test_errors_equal_model_transcribe(
    free_pool: RequestPool, model: choral.Model, server: LocalServer, tmp_path: Path, jfk: Path
) -> None:
    bad = {"empty.wav": b"", "text.mp3": b"no sound at all " * 100, "cut.wav": b"RIFF"}
    inputs = [tmp_path, tmp_path / "missing.wav", tmp_path / "missing" / "a.wav", server.url + "/no.wav", "a\0.wav"]
    for name, body in bad.items():
        (tmp_path / name).write_bytes(body)
        inputs += [tmp_path / name, server.add(f"/{name}", body)]
    for audio in inputs:
        with pytest.raises(ChoralError) as expected:
            model.transcribe(audio)
        request = Followed(free_pool, audio)
        with pytest.raises(type(expected.value)) as caught:
            request.result()
        assert str(caught.value) == str(expected.value)
        assert caught.value.is_retryable == expected.value.is_retryable
    unsupported = TranscribeOptions(language="de")
    with pytest.raises(UsageError) as expected:
        model.transcribe(jfk, unsupported)
    with pytest.raises(UsageError) as caught:
        Followed(free_pool, jfk, unsupported).result()
    assert str(caught.value) == str(expected.value)
    for audio, error in ((np.zeros((2, 9), np.int16), BadSamples), (b"", AudioEmpty), ("file:///a.wav", UsageError)):
        with pytest.raises(error):
            Followed(free_pool, audio)


def test_limits_on_size_and_length(make_pool: Callable[..., RequestPool], tmp_path: Path) -> None:
    pool = make_pool(max_bytes=2**20, max_audio_s=60.0, memory_bytes=2**20)
    path = tmp_path / "large.wav"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(AudioTooLarge, match="10 GiB, the limit is 1 MiB"):
        Followed(pool, path).result()
    with pytest.raises(AudioTooLarge, match="limit is 1 MiB"):
        Followed(pool, bytes(2**20 + 1)).result()
    body = encode(np.zeros(3_600 * 16_000, np.int16), "flac", "flac")
    with pytest.raises(AudioTooLarge, match="longer than 60 s: cut it into parts"):
        Followed(pool, body).result()
    silent = Followed(pool, wav(np.zeros(400_000, np.int16))).result()  # beyond its share of memory: in a file
    assert silent.duration == 25.0
    assert silent.warnings == ("the audio is silent: nothing to transcribe",)


def test_hostile_media_fail_alone(
    free_pool: RequestPool, model: choral.Model, jfk: Path, tmp_path: Path, tones: Int16Samples
) -> None:
    """Damaged files of several formats beside good ones: typed errors or a transcript, and the good ones succeed."""
    rng = np.random.default_rng(0)
    expected = model.transcribe(jfk)
    requests, good = [], []
    for container, codec in (("mp3", "libmp3lame"), ("flac", "flac"), ("ogg", "libopus"), ("wav", "pcm_s16le")):
        body = bytearray(encode(tones, container, codec, rate=48_000))
        for position in rng.integers(0, len(body), 40):
            body[position] = rng.integers(256)
        (tmp_path / f"bad.{container}").write_bytes(body)
        requests.append(Followed(free_pool, tmp_path / f"bad.{container}", TranscribeOptions(temperature=0.0)))
        good.append(Followed(free_pool, jfk))
    assert [shape_of(request.result()) for request in good] == [shape_of(expected)] * 4
    for request in requests:
        try:
            request.result()
        except ChoralError as error:
            assert error.exit_code == 3  # noqa: PT017  either outcome is right
