"""The server's parts by themselves: limits by the clock, text in pieces, and requests that are cancelled."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path

import pytest

import choral
from choral.audio.prep.input_sources import OpenFile
from choral.audio.prep.pool import PrepPool
from choral.audio.prep.settings import PrepSettings
from choral.common.aio import cancel_tasks
from choral.common.malloc import frozen_gc
from choral.errors import AudioEmpty, QueueFull, UsageError
from choral.server.api_errors import ApiError
from choral.server.api_keys import ApiKey, ApiKeyStore, hash_secret, new_secret, write_keys
from choral.server.listener import trim_memory_periodically
from choral.server.quota import KeyQuota
from choral.server.responses import TextAccumulator
from choral.server.service import Service
from choral.server.settings import ServerSettings
from choral.server.usage import DAY_S
from choral.types import Segment, TranscribeOptions


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_text_in_pieces_is_the_stripped_whole() -> None:
    accumulator = TextAccumulator()
    pieces = [accumulator.add(text) for text in ("  ", " One ", "  ", "two. ", " Three ")]
    assert pieces == ["", "One", "", "   two.", "  Three"]
    assert "".join(pieces) == accumulator.text == "One   two.  Three"


def test_requests_a_minute() -> None:
    clock = Clock()
    quota, key = KeyQuota(clock=clock), ApiKey(name="a", sha256="", requests_per_minute=2)
    for _ in range(2):
        with quota.request(key):
            clock.now_s += 10
    with pytest.raises(ApiError, match=r"2 requests per minute: try again in 40 s") as refused, quota.request(key):
        pass
    assert (refused.value.http_status, refused.value.retry_after_s) == (429, 40)
    clock.now_s += 40
    with quota.request(key):
        pass


def test_requests_at_the_same_time() -> None:
    quota, key = KeyQuota(), ApiKey(name="a", sha256="", parallel_requests=1)
    with quota.request(key), pytest.raises(ApiError, match="1 concurrent requests"), quota.request(key):
        pass
    with quota.request(key):
        pass


def test_minutes_of_audio_a_day() -> None:
    clock = Clock()
    quota, key = KeyQuota(wall_clock=clock), ApiKey(name="a", sha256="", audio_minutes_per_day=1)
    with quota.request(key):
        quota.charge(key, 50)
        with pytest.raises(ApiError, match=r"has used 0.8; this audio is 0.5 more"):
            quota.charge(key, 30)
        quota.charge(key, 10)
    with pytest.raises(ApiError, match=r"has used 1\.0") as refused, quota.request(key):
        pass
    assert refused.value.retry_after_s == DAY_S
    clock.now_s += DAY_S
    with quota.request(key):
        quota.charge(key, 60)


def test_keys(tmp_path: Path) -> None:
    path, secret = tmp_path / "keys.json", new_secret()
    write_keys(path, [ApiKey(name="a", sha256=hash_secret(secret), requests_per_minute=3)])
    ring = ApiKeyStore(path, "given")
    found = ring.find(secret)
    assert found is not None
    assert (found.name, found.requests_per_minute) == ("a", 3)
    assert ring.find("given") is not None
    assert ring.find(secret + " ") is None
    path.write_text("{")  # an edit half done locks nobody out
    assert ring.find(secret) is not None
    write_keys(path, [])
    assert ring.find(secret) is None
    assert not ApiKeyStore().is_required
    path.write_text('{"v": 2, "keys": []}')
    with pytest.raises(UsageError, match="version 2"):
        ApiKeyStore(path)
    with pytest.raises(UsageError, match="1 to 64 letters"):
        ApiKey(name="a b", sha256="")


def test_frozen_gc_excludes_loaded_objects() -> None:
    before = gc.get_freeze_count()
    with frozen_gc():
        assert gc.get_freeze_count() > before + 1000
    assert gc.get_freeze_count() == 0


def test_memory_is_trimmed_periodically_until_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[float] = []
    monkeypatch.setattr("choral.server.listener.TRIM_EVERY_S", 0.01)
    monkeypatch.setattr("choral.server.listener.trim_malloc", lambda: trims.append(time.monotonic()))

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


def test_cancelled_requests_leave_before_the_next_step(tiny_en_pt: Path, jfk: Path, tmp_path: Path) -> None:
    async def run(service: Service, nothing: Path) -> None:
        options = TranscribeOptions(beam_size=5)
        with jfk.open("rb") as file:
            audio = OpenFile("jfk.wav", file)
            task = asyncio.create_task(service.transcribe(audio, options))
            while service.model.stats.steps == 0:
                await asyncio.sleep(0.01)
            with pytest.raises(QueueFull, match="1 requests are already in progress"):
                await service.transcribe(audio, options)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert service.requests.n_active == 0
            steps, deadline_s = service.model.stats.steps, time.monotonic() + 20
            while service.model.stats.cancelled == 0 and time.monotonic() < deadline_s:
                await asyncio.sleep(0.001)
            assert service.model.stats.cancelled == 1
            assert service.model.stats.steps <= steps + 2
            told: list[Segment] = []
            transcript = await service.transcribe(audio, TranscribeOptions(), on_segment=told.append)
            assert tuple(told) == transcript.segments
            with nothing.open("wb+") as empty, pytest.raises(AudioEmpty, match=r"nothing\.mp3 is empty"):
                await service.transcribe(OpenFile("nothing.mp3", empty), options)

    with choral.load("tiny.en") as model, PrepPool(PrepSettings(processes=1)) as pool:
        asyncio.run(run(Service.of(model, pool, ServerSettings(queue_limit=1)), tmp_path / "empty"))
