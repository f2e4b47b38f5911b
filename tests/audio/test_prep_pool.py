"""The prep pool with real files and servers: results, limits, cancellation and cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest

from choral.audio.prep.input_sources import PrepInput
from choral.audio.prep.pool import Backlog, PrepPool
from choral.audio.prep.settings import PrepSettings
from choral.audio.recording import Recording
from choral.errors import (
    AudioEmpty,
    AudioTooLarge,
    ChoralError,
    FetchFailed,
    StorageError,
    UsageError,
)
from local_server import LocalServer
from media_files import Int16Samples, encode, wav
from prep_helpers import EMPTY, children, samples_of, wait_until


def test_samples_equal_recording_open(pool: PrepPool, tones: Int16Samples, tmp_path: Path, server: LocalServer) -> None:
    makers = [
        ("mp3", "libmp3lame", 44_100),
        ("flac", "flac", 48_000),
        ("ogg", "libopus", 48_000),
        ("wav", "pcm_s16le", 8_000),
    ]
    for container, codec, rate in makers:
        body = encode(tones, container, codec, rate=rate, layout="stereo")
        path = tmp_path / f"a.{container}"
        path.write_bytes(body)
        with Recording.open(path) as expected:
            for audio in (path, str(path), body, server.add(f"/a.{container}", body)):
                prepared = pool.submit(audio).result(20)
                with prepared.recording as recording:
                    assert samples_of(recording) == samples_of(expected)
                    assert recording.n_samples == expected.n_samples
                    assert recording.is_silent == expected.is_silent
                    assert recording.warnings == expected.warnings
                    assert prepared.decode_s > 0
    wait_until(lambda: pool.backlog == EMPTY)


def test_warnings_and_names_equal_recording_open(pool: PrepPool, tones: Int16Samples, tmp_path: Path) -> None:
    path = tmp_path / "cut.flac"
    body = encode(tones, "flac", "flac")
    path.write_bytes(body[: len(body) // 2])
    with Recording.open(path) as expected, pool.submit(path).result(20).recording as recording:
        assert recording.warnings == expected.warnings != ()
        assert recording.name == expected.name == str(path)


BAD: dict[str, bytes] = {"empty.wav": b"", "text.mp3": b"no sound at all " * 100, "cut.wav": b"RIFF"}


@pytest.mark.parametrize("name", BAD)
def test_errors_equal_recording_open(pool: PrepPool, server: LocalServer, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(BAD[name])
    missing = tmp_path / "missing.wav"
    for audio in (
        path,
        missing,
        tmp_path / "missing" / "a.wav",
        server.add(f"/{name}", BAD[name]),
        server.url + "/no.wav",
    ):
        with pytest.raises(ChoralError) as expected:
            Recording.open(audio)
        with pytest.raises(type(expected.value)) as caught:
            pool.submit(audio).result(20)
        assert str(caught.value) == str(expected.value)
        assert not caught.value.is_retryable


def test_max_bytes(make_pool: Callable[..., PrepPool], tmp_path: Path) -> None:
    pool = make_pool(max_bytes=2**20)
    path = tmp_path / "large.wav"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(AudioTooLarge, match="10 GiB, the limit is 1 MiB"):
        pool.submit(path).result(20)
    with pytest.raises(AudioTooLarge, match="limit is 1 MiB"):
        pool.submit(bytes(2**20 + 1)).result(20)


def test_stalled_and_trickling_downloads_time_out(
    make_pool: Callable[..., PrepPool], tones: Int16Samples, server: LocalServer
) -> None:
    pool = make_pool(fetch_timeout_s=1.0, stall_timeout_s=0.5)
    stalling = server.add("/stall", wav(tones), delay_s=3)
    start_s = time.monotonic()
    with pytest.raises(FetchFailed, match="no response in time") as caught:
        pool.submit(stalling).result(20)
    assert caught.value.is_retryable
    trickle = server.add("/trickle", wav(np.tile(tones, 30)), delay_s=0.3)
    with pytest.raises(FetchFailed, match="took over 1 s"):
        pool.submit(trickle).result(20)
    assert time.monotonic() - start_s < 4


def test_max_audio_s(make_pool: Callable[..., PrepPool], tmp_path: Path) -> None:
    body = encode(np.zeros(3_600 * 16_000, np.int16), "flac", "flac")
    assert len(body) < 1_000_000
    with pytest.raises(AudioTooLarge, match="longer than 60 s: cut it into parts"):
        make_pool(max_audio_s=60).submit(body).result(20)


def test_memory_budget_spills_to_disk(make_pool: Callable[..., PrepPool]) -> None:
    pool = make_pool(memory_bytes=2**20)
    clip = (np.sin(np.arange(30_000) * 0.05) * 9_000).astype(np.int16)
    every = [pool.submit(wav(clip)).result(20).recording for _ in range(20)]
    assert 2**20 - 60_000 < pool.backlog.memory_bytes <= 2**20  # 17 of them
    long = pool.submit(wav(np.tile(clip, 100))).result(20).recording  # too long for memory, whatever the budget
    assert pool.backlog.memory_bytes <= 2**20
    assert long.n_samples == 3_000_000
    np.testing.assert_array_equal(long.samples(2_990_000, 3_000_000), (clip / np.float32(32768))[-10_000:])
    assert {samples_of(recording) for recording in every} == {(clip / np.float32(32768)).tobytes()}
    for recording in every:
        recording.close()
        recording.close()
    wait_until(lambda: pool.backlog == EMPTY)
    long.close()
    assert pool.submit(wav(clip)).result(20).recording.duration == 1.875  # garbage-collected, which releases its memory
    wait_until(lambda: pool.backlog == EMPTY)


def test_long_files_do_not_grow_the_parent(make_pool: Callable[..., PrepPool], tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    path.write_bytes(encode(np.zeros(1_800 * 16_000, np.int16), "flac", "flac"))
    pool = make_pool(memory_bytes=2**20)
    pool.submit(path).result(60).recording.close()
    before = resident_bytes()
    every = [future.result(60).recording for future in [pool.submit(path) for _ in range(8)]]
    assert sum(recording.n_samples for recording in every) * 2 == 8 * 57_600_000
    assert resident_bytes() - before < 30 * 2**20
    for recording in every:
        recording.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_downloads_do_not_occupy_processes(
    make_pool: Callable[..., PrepPool], tones: Int16Samples, server: LocalServer
) -> None:
    pool = make_pool(processes=1, fetches=6, fetches_per_host=6)
    urls = [server.add(f"/{i}.wav", wav(tones), delay_s=0.7) for i in range(6)]  # in two pieces: 1.4 s each
    start_s = time.monotonic()
    slow = [pool.submit(url) for url in urls]
    wait_until(lambda: pool.backlog.fetching == 6)
    pool.submit(wav(tones)).result(20).recording.close()
    for future in slow:
        prepared = future.result(20)
        assert prepared.fetch_s > 1.3
        prepared.recording.close()
    assert time.monotonic() - start_s < 6  # 8.4 s one after another


def test_cancel_in_every_phase(
    make_pool: Callable[..., PrepPool], tones: Int16Samples, server: LocalServer, tmp_path: Path
) -> None:
    pool = make_pool(processes=1, fetches=1)
    (tmp_path / "hang.wav").write_bytes(wav(tones))
    decoding = pool.submit(tmp_path / "hang.wav")
    waiting = pool.submit(tmp_path / "hang.wav")
    fetching = pool.submit(server.add("/a.wav", wav(tones), delay_s=30))
    good = pool.submit(wav(tones))
    wait_until(lambda: pool.backlog == Backlog(waiting=2, fetching=1, fetched=0, decoding=1, memory_bytes=0))
    start_s = time.monotonic()
    for future in (waiting, fetching, decoding):
        assert future.cancel()
        with pytest.raises(CancelledError):
            future.result()
    good.result(20).recording.close()
    pool.submit(server.add("/b.wav", wav(tones))).result(20).recording.close()  # the only thread for downloads is free
    assert time.monotonic() - start_s < 5
    wait_until(lambda: pool.backlog == EMPTY)


def test_cancel_from_asyncio(pool: PrepPool, tones: Int16Samples, tmp_path: Path) -> None:
    (tmp_path / "hang.wav").write_bytes(wav(tones))

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.wrap_future(pool.submit(tmp_path / "hang.wav"))
        (await asyncio.wrap_future(pool.submit(wav(tones)))).recording.close()

    asyncio.run(run())
    wait_until(lambda: pool.backlog == EMPTY)


def test_close_cancels_all_tasks(
    make_pool: Callable[..., PrepPool], tones: Int16Samples, server: LocalServer, tmp_path: Path
) -> None:
    (tmp_path / "hang.wav").write_bytes(wav(tones))
    before = children()
    pool = make_pool(fetches=2, fetches_per_host=2)
    kept = pool.submit(wav(tones)).result(20).recording
    inputs: list[PrepInput] = [tmp_path / "hang.wav"] * 4
    futures = [pool.submit(audio) for audio in [*inputs, *[server.add("/a.wav", wav(tones), delay_s=30)] * 4]]
    wait_until(lambda: (pool.backlog.decoding, pool.backlog.fetching) == (2, 2))
    start_s = time.monotonic()
    pool.close()
    pool.close()
    assert time.monotonic() - start_s < 3
    assert all(future.cancelled() for future in futures)
    assert children() == before
    assert kept.samples(0, 10).size == 10
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(wav(tones))


def test_no_descriptor_leaks(pool: PrepPool, tones: Int16Samples, tmp_path: Path, server: LocalServer) -> None:
    (tmp_path / "segfault.wav").write_bytes(wav(tones))
    url = server.add("/a.wav", wav(tones))

    def work() -> int:
        for audio in (wav(tones), url, tmp_path / "segfault.wav", tmp_path / "no.wav", b"", b"nothing"):
            with contextlib.suppress(ChoralError):
                pool.submit(audio).result(20).recording.close()
        gc.collect()
        return len([link for link in map(read_link, os.listdir("/proc/self/fd")) if "socket" not in link])

    assert work() == work()


def read_link(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return "socket"


def test_full_disk_is_retryable(pool: PrepPool, tones: Int16Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("choral.audio.prep.pool.temporary_file", lambda: open("/dev/full", "r+b"))  # noqa: SIM115
    with pytest.raises(StorageError, match="no space left") as caught:
        pool.submit(wav(tones)).result(20)
    assert caught.value.is_retryable


def test_silent_and_empty_input(pool: PrepPool) -> None:
    assert pool.submit(wav(np.zeros(1_000, np.int16))).result(20).recording.is_silent
    with pytest.raises(AudioEmpty):
        pool.submit(b"").result(20)


@pytest.mark.parametrize(
    "given",
    [
        {"processes": -1},
        {"fetches": 0},
        {"memory_bytes": -1},
        {"max_bytes": 0},
        {"max_audio_s": 0},
        {"roots": ("/no",)},
    ],
)
def test_invalid_settings(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(given)).removesuffix("s")):
        PrepSettings(**given)  # type: ignore[arg-type]
