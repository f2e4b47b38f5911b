"""Lanes of the prep pool: clients, jobs and hosts do not wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from choral.audio.prep.lanes import HostLimiter
from choral.audio.prep.pool import PrepPool
from choral.errors import FetchFailed, NotAudio
from local_server import LocalServer, serve
from media_files import Int16Samples, wav
from prep_helpers import wait_until


def test_host_limiter_starts_waiting_work_in_order() -> None:
    limiter, started = HostLimiter(2), []
    for i in range(4):
        limiter.acquire("a", lambda i=i: started.append(i))  # type: ignore[misc]
    limiter.acquire("b", lambda: started.append("b"))
    assert started == [0, 1, "b"]
    limiter.release("a")
    assert started == [0, 1, "b", 2]
    limiter.release("a")
    limiter.release("a")
    limiter.release("a")
    limiter.release("b")
    assert started == [0, 1, "b", 2, 3]
    limiter.acquire("a", lambda: started.append("again"))
    assert started[-1] == "again"


def test_slow_host_does_not_delay_others(
    make_pool: Callable[..., PrepPool], tones: Int16Samples, server: LocalServer
) -> None:
    pool = make_pool(fetches=4, allowed_hosts=("127.0.0.1", "localhost"))
    slow = [pool.submit(server.add(f"/{i}.wav", wav(tones), delay_s=30)) for i in range(20)]
    wait_until(lambda: pool.backlog.fetching == 2)
    with serve() as other:
        for i in range(6):
            url = other.add(f"/{i}.wav", wav(tones)).replace("127.0.0.1", "localhost")
            pool.submit(url).result(5).recording.close()
    assert pool.backlog.fetching == 2
    assert pool.backlog.waiting == 18
    cancelled_s = time.monotonic()
    for future in slow:
        future.cancel()
    wait_until(lambda: pool.backlog.fetching == 0)
    pool.submit(server.add("/good.wav", wav(tones))).result(5).recording.close()
    assert time.monotonic() - cancelled_s < 5


def test_pool_closes_while_downloads_wait_for_their_host(
    make_pool: Callable[..., PrepPool], tones: Int16Samples, server: LocalServer
) -> None:
    pool = make_pool(fetches=2)
    futures = [pool.submit(server.add("/a.wav", wav(tones), delay_s=30)) for _ in range(5)]
    wait_until(lambda: pool.backlog.fetching == 1)
    pool.close()
    assert all(future.cancelled() for future in futures)


def test_jobs_that_hang_do_not_delay_clients(
    make_pool: Callable[..., PrepPool], tones: Int16Samples, tmp_path: Path
) -> None:
    pool = make_pool(processes=1)
    (tmp_path / "hang.wav").write_bytes(wav(tones))
    jobs = [pool.submit(tmp_path / "hang.wav") for _ in range(3)]
    wait_until(lambda: pool.backlog.decoding == 1)
    pool.submit(wav(tones), is_interactive=True).result(10).recording.close()
    assert not any(job.done() for job in jobs)


def test_clients_that_hang_do_not_delay_jobs_and_end_sooner(
    make_pool: Callable[..., PrepPool], tones: Int16Samples, tmp_path: Path, server: LocalServer
) -> None:
    pool = make_pool(processes=1, interactive_timeout_s=2.0)
    (tmp_path / "hang.wav").write_bytes(wav(tones))
    request = pool.submit(tmp_path / "hang.wav", is_interactive=True)
    job = pool.submit(tmp_path / "hang.wav")
    with pytest.raises(NotAudio, match=r"could not be decoded in 2 s"):
        request.result(20)
    assert not job.done()  # jobs have decode_timeout_s
    trickle = server.add("/trickle", wav(tones) * 20, delay_s=0.3)
    with pytest.raises(FetchFailed, match=r"took over 2 s"):
        pool.submit(trickle, is_interactive=True).result(20)
