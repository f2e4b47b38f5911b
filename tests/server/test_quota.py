"""Quotas of API keys, their recorded usage, and the key file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from pathlib import Path

import pytest

from choral.common.aio import LoopSupervisor
from choral.errors import StorageError, UsageError
from choral.server.api_errors import ApiError
from choral.server.api_keys import ApiKey, ApiKeyStore, hash_secret, new_secret, write_keys
from choral.server.quota import KeyQuota, KeyQuotas
from choral.server.usage import DAY_S, UsageEntry, UsageTable, open_usage


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_requests_per_minute() -> None:
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


def test_audio_that_was_accepted_is_charged_over_the_limit() -> None:
    entries: list[UsageEntry] = []
    quota, key = KeyQuota(entries.append), ApiKey(name="a", sha256="", audio_minutes_per_day=0.05)
    quota.charge_used(key, 2.0)
    with pytest.raises(ApiError, match=r"limited to 0\.05 minutes"):
        quota.charge_used(key, 4.8)
    assert [entry.duration_s for entry in entries] == [2.0, 4.8]
    with pytest.raises(ApiError, match=r"has used 0\.1"), quota.request(key):
        pass


def test_concurrent_requests() -> None:
    quota, key = KeyQuota(), ApiKey(name="a", sha256="", parallel_requests=1)
    with quota.request(key), pytest.raises(ApiError, match="1 concurrent requests"), quota.request(key):
        pass
    with quota.request(key):
        pass


def test_audio_minutes_per_day() -> None:
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


def test_job_is_charged_once_and_usage_expires_after_a_day() -> None:
    recorded: list[UsageEntry] = []
    clock = Clock()
    key = ApiKey(name="a", sha256="", audio_minutes_per_day=1)
    quota = KeyQuota(recorded.append, wall_clock=clock)
    quota.charge(key, 30, "job-1")
    quota.charge(key, 30, "job-1")
    quota.add(key, 40, "job-2")  # a worker has done it already
    assert [(entry.id, entry.at, entry.duration_s) for entry in recorded] == [("job-1", 1000, 30), ("job-2", 1000, 40)]
    with pytest.raises(ApiError, match=r"has used 1\.2"):
        quota.charge(key, 1)
    clock.now_s += DAY_S
    quota.charge(key, 60, "job-3")
    assert len(recorded) == 3


def test_quotas_start_from_recorded_usage() -> None:
    now, key = time.time(), ApiKey(name="a", sha256="", audio_minutes_per_day=1)
    quotas = KeyQuotas(
        entries=[UsageEntry("1", "a", now, 50.0), UsageEntry("2", "b", now, 10.0), UsageEntry("3", "a", now, None)]
    )
    assert [entry.id for entry in quotas.deferred] == ["3"]
    with pytest.raises(ApiError, match=r"has used 0\.8; this audio is 0\.2 more"):
        quotas.of("a").charge(key, 11)
    quotas.of("a").charge(key, 11, "1")  # counted before
    quotas.of("c").charge(ApiKey(name="c", sha256="", audio_minutes_per_day=1), 60)


def test_usage_is_written_within_a_second_and_at_shutdown(tmp_path: Path) -> None:
    now = time.time()
    first, last = UsageEntry("1", "a", now, 5.0), UsageEntry("2", "a", now, None)

    async def run() -> None:
        async with open_usage(tmp_path, LoopSupervisor()) as (writer, entries):
            assert entries == []
            writer.add(UsageEntry("old", "a", now - DAY_S, 5.0))
            writer.add(first)
            with pytest.raises(StorageError, match="choose another folder with --data"):
                await asyncio.to_thread(UsageTable, tmp_path)
            await asyncio.sleep(1.0)
            assert writer._pending == []  # written
            writer.add(last)
        async with open_usage(tmp_path, LoopSupervisor()) as (writer, entries):
            assert entries == [first, last]
            writer.add(UsageEntry("2", "a", now, 7.0))  # now its length is known
        async with open_usage(tmp_path, LoopSupervisor()) as (_, entries):
            assert [entry.duration_s for entry in entries] == [5.0, 7.0]

    asyncio.run(run())


def test_usage_stored_by_version_0_1_is_kept(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "usage.sqlite")) as old:
        old.execute("CREATE TABLE heard (id TEXT PRIMARY KEY, key TEXT NOT NULL, at REAL NOT NULL, duration_s REAL)")
        old.execute("CREATE INDEX heard_by_age ON heard (at)")
        old.execute("INSERT INTO heard VALUES ('1', 'a', ?, 5.0)", (time.time(),))
        old.commit()
    for _ in range(2):
        with contextlib.closing(UsageTable(tmp_path)) as table:
            assert [(entry.id, entry.duration_s) for entry in table.entries()] == [("1", 5.0)]


def test_api_key_file(tmp_path: Path) -> None:
    path, secret = tmp_path / "keys.json", new_secret()
    write_keys(path, [ApiKey(name="a", sha256=hash_secret(secret), requests_per_minute=3)])
    ring = ApiKeyStore(path, "given")
    found = ring.find(secret)
    assert found is not None
    assert (found.name, found.requests_per_minute) == ("a", 3)
    assert ring.find("given") is not None
    assert ring.find(secret + " ") is None
    path.write_text("{")  # a half-edited file keeps the old keys
    assert ring.find(secret) is not None
    write_keys(path, [])
    assert ring.find(secret) is None
    assert not ApiKeyStore().is_required
    path.write_text('{"v": 2, "keys": []}')
    with pytest.raises(UsageError, match="version 2"):
        ApiKeyStore(path)
    with pytest.raises(UsageError, match="1 to 64 letters"):
        ApiKey(name="a b", sha256="")


def test_key_file_cannot_share_a_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Keys of one name would share their jobs and limits."""
    path, digest = tmp_path / "keys.json", hash_secret("ck-1")
    write_keys(path, [ApiKey(name="given", sha256=digest)])
    assert ApiKeyStore(path).find("ck-1")
    with pytest.raises(UsageError, match="rename the one in the file"):
        ApiKeyStore(path, "single")
    write_keys(path, [ApiKey(name="ann", sha256=digest), ApiKey(name="ann", sha256=hash_secret("ck-2"))])
    with pytest.raises(UsageError, match="two keys named 'ann'"):
        ApiKeyStore(path)
    write_keys(path, [ApiKey(name="ann", sha256="é")])
    with pytest.raises(UsageError, match="no valid SHA-256"):
        ApiKeyStore(path)
    write_keys(path, [ApiKey(name="ann", sha256=digest)])
    store = ApiKeyStore(path, "single")
    write_keys(path, [ApiKey(name="given", sha256=hash_secret("ck-3"))])
    assert [key.name for key in store.all()] == [key.name for key in store.all()] == ["given", "ann"]
    assert store.find("ck-3") is None
    assert caplog.text.count("the API keys stay as they were") == 1
