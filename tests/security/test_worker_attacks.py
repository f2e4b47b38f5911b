"""Attacks on a real worker process and its Redis: callbacks, slow servers, full memory, damaged records.

A server with `--redis` is probed meanwhile: each good job passes through it, Redis and the worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
import redis as library

from attack_probe import ProbeReport, wait_until
from choral import errors
from choral.jobs import Client, ClientSettings
from choral.jobs.job_queue import JobQueue
from choral.jobs.redis_connection import connect
from choral.jobs.redis_keys import RedisKeys
from choral.jobs.request import AudioRef, JobRequest
from choral.options import TranscribeOptions
from hostile_server import tar_pit
from serve_process import ServeProcess, running
from support.redis_server import RedisServer, free_port
from webhook_receiver import receive_webhooks
from worker_process import WorkerProcess, running_worker

Attacked = Callable[..., AbstractContextManager[ProbeReport]]
START_WITHIN_S = 60.0
N_NEVER_VALID = 5
BAD_CALLBACKS = (
    "http://127.0.0.1:99999999999999999999/",
    "http://127.0.0.1:65536/",
    "http://127.0.0.1:0/",
    "http://127.0.0.1:port/",
    "http://[::1/",
    f"http://{'a' * 300}.example/",  # these names may fail to resolve, which is retried
    "http://\x00/",
    "http://a b/",
    "https://xn--/\ud800",
)


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def worker(redis_server: RedisServer, tiny_en_pt: Path, metrics_port: int) -> Iterator[WorkerProcess]:
    """It must survive every attack of this module, and end on the first SIGTERM."""
    with running_worker(
        redis_server.url, "--model", tiny_en_pt, "--threads", 1, "--processes", 1, "--metrics-port", metrics_port,
        "--allowed-hosts", "127.0.0.1,localhost", "--webhook-s", 3, "--fetches", 8, "--max-attempts", 1,
    ) as started, Client(redis_server.url) as client:  # fmt: skip
        wait_until(lambda: bool(client.workers()), START_WITHIN_S)
        yield started


@pytest.fixture(scope="module")
def server(
    redis_server: RedisServer, worker: WorkerProcess, tiny_en_pt: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServeProcess]:
    """`choral serve` that gives its jobs to the worker."""
    data = tmp_path_factory.mktemp("data")
    with running(
        "--model", tiny_en_pt, "--data", data, "--redis", redis_server.url, "--processes", 1, "--threads", 1
    ) as started:  # fmt: skip
        yield started


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Client]:
    with Client(redis_server.url, ClientSettings(inline_bytes=1000)) as opened:
        yield opened


@pytest.fixture
def plain(redis_server: RedisServer) -> Iterator[library.Redis]:
    with library.Redis.from_url(redis_server.url) as opened:
        yield opened
        opened.config_set("maxmemory", 0)


def submit_unchecked(url: str, *callbacks: str) -> list[str]:
    """Jobs as another program, or an older version, may have submitted them."""

    async def submit() -> list[str]:
        async with connect(url) as redis:
            queue = JobQueue(redis, RedisKeys())
            audio = AudioRef("inline", "", "talk.mp3")
            requests = [
                JobRequest(id=f"bad-{time.monotonic_ns()}", audio=audio, options=TranscribeOptions(), callback=callback)
                for callback in callbacks
            ]
            for request in requests:
                assert await queue.submit(request, b"not audio", 1000) == "new"
            return [request.id for request in requests]

    return asyncio.run(submit())


def test_callbacks_that_cannot_be_called_fail_alone(
    worker: WorkerProcess, client: Client, redis_server: RedisServer, attacked: Attacked
) -> None:
    with attacked(good="job"):
        ids = submit_unchecked(redis_server.url, *BAD_CALLBACKS)
        wait_until(lambda: all(client.show(job_id).webhook_attempts for job_id in ids))
        assert {client.show(job_id).webhook for job_id in ids[:N_NEVER_VALID]} == {"failed"}
    assert worker.process.poll() is None, worker.log
    with receive_webhooks() as receiver:
        client.submit(b"not audio", callback=receiver.url)
        wait_until(lambda: len(receiver.received) == 1)


def test_callbacks_that_do_not_answer_delay_no_other(client: Client, attacked: Attacked) -> None:
    with attacked(good="job"), tar_pit(b"") as slow, receive_webhooks() as receiver:
        for _ in range(32):
            client.cancel(client.submit("http://127.0.0.1:1/", callback=slow))
        time.sleep(2)  # the worker has begun to send them
        client.cancel(client.submit("http://127.0.0.1:1/", callback=receiver.url.replace("127.0.0.1", "localhost")))
        started_s = time.monotonic()
        wait_until(lambda: len(receiver.received) == 1)
        assert time.monotonic() - started_s < 3


def test_urls_that_trickle_hold_no_place_of_other_jobs(client: Client, attacked: Attacked) -> None:
    with tar_pit() as url:
        ids = [client.submit(url) for _ in range(40)]
        wait_until(lambda: sum(client.show(job_id).state == "running" for job_id in ids) >= 4)
        with attacked(good="job", good_within_s=20):
            wait_until(lambda: any(client.show(job_id).state == "waiting" for job_id in ids))
            assert sum(client.show(job_id).state == "running" for job_id in ids) <= 8
        for job_id in ids:
            client.cancel(job_id)
    wait_until(lambda: all(client.show(job_id).has_ended for job_id in ids))
    assert {client.show(job_id).attempts for job_id in ids} <= {0, 1}


def test_uploads_that_fail_leave_nothing_in_redis(client: Client, plain: library.Redis, attacked: Attacked) -> None:
    used_bytes = plain.info("memory")["used_memory"]
    with attacked(good="job"):
        ids = [client.submit(os.urandom(2_000_000)) for _ in range(30)]
        client.cancel(ids[-1])
        wait_until(lambda: all(client.show(job_id).has_ended for job_id in ids), 60)
    assert {client.show(job_id).state for job_id in ids} <= {"failed", "cancelled"}
    assert plain.keys("{choral}:blob:*") == []
    assert plain.info("memory")["used_memory"] - used_bytes < 3_000_000


def test_a_full_redis_refuses_submits_and_lets_the_worker_free_it(
    worker: WorkerProcess, client: Client, plain: library.Redis, jfk: Path, attacked: Attacked
) -> None:
    with attacked(good="none"):
        good = [client.submit(jfk) for _ in range(3)]
        plain.config_set("maxmemory", plain.info("memory")["used_memory"] + 3_000_000)
        with pytest.raises(errors.RedisUnavailable, match="out of memory"):
            [client.submit(os.urandom(900_000)) for _ in range(20)]
        plain.config_set("maxmemory", 1)
        for size in (10, 900_000):
            with pytest.raises(errors.RedisUnavailable, match="out of memory"):
                client.submit(bytes(size))
        client.wait_all(good, timeout_s=60)
        assert all("country" in client.result(job_id).text for job_id in good)
        wait_until(lambda: client.counts().held + sum(client.counts().waiting.values()) == 0, 60)
        assert plain.keys("{choral}:blob:*") == []
    assert worker.process.poll() is None, worker.log


def test_damaged_records_fail_alone(
    worker: WorkerProcess, client: Client, redis_server: RedisServer, plain: library.Redis, attacked: Attacked
) -> None:
    damages: list[dict[str, str | bytes]] = [
        {"request": "{"},
        {"request": "[]"},
        {"request": '{"v": 1, "audio": 3}'},
        {"request": b"\xff\xfe"},
        {"attempts": "many"},
        {"queued_at": "never"},
        {"keep_s": "long", "request": "null"},
        {"round": "first"},
    ]
    with attacked(good="job"):
        os.kill(worker.process.pid, signal.SIGSTOP)
        ids = submit_unchecked(redis_server.url, *("http://127.0.0.1:1/" for _ in range(len(damages) + 1)))
        for job_id, fields in zip(ids, damages, strict=False):
            plain.hset(f"{{choral}}:job:{job_id}", mapping=fields)  # type: ignore[arg-type]
        plain.delete(f"{{choral}}:job:{ids[-1]}")
        plain.set(f"{{choral}}:job:{ids[-1]}", "not a hash")
        for priority in ("interactive", "batch"):
            plain.xadd(f"{{choral}}:queue:{priority}", {"x": b"\xff"})
            plain.xadd(f"{{choral}}:queue:{priority}", {"id": b"\xff"})
        os.kill(worker.process.pid, signal.SIGCONT)
        wait_until(lambda: all(plain.hget(f"{{choral}}:job:{job_id}", "state") == b"failed" for job_id in ids[:-1]))
        wait_until(lambda: client.counts().held == 0)
    assert worker.process.poll() is None, worker.log
    assert client.list()


def test_metrics_are_served_to_this_machine_only(worker: WorkerProcess, metrics_port: int) -> None:
    listening = [
        connection.laddr
        for connection in psutil.Process(worker.process.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening == [("127.0.0.1", metrics_port)]
    with urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as response:
        assert b"choral_jobs_total" in response.read()
