"""Which paths and URLs the request pool reads, and that clients, jobs and hosts do not wait for each other."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from choral.audio.recording import Recording
from choral.errors import AudioNotFound, AudioRefused, ChoralError, FetchFailed, NotAudio
from choral.options import TranscribeOptions
from choral.serving.request_pool import RequestPool
from local_server import LocalServer, serve
from media_files import Int16Samples, wav
from request_helpers import Followed, wait_until

SHORT = TranscribeOptions(temperature=0.0, max_tokens=2)  # the text does not matter


def test_paths_and_urls_outside_the_limits(
    make_pool: Callable[..., RequestPool], tones: Int16Samples, tmp_path: Path, server: LocalServer
) -> None:
    root, outside = tmp_path / "root", tmp_path / "root-outside"
    for folder in (root / "sub", outside):
        folder.mkdir(parents=True)
        (folder / "a.wav").write_bytes(wav(tones))
    (root / "link.wav").symlink_to(outside / "a.wav")
    (root / "folder").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    (root / "good-link.wav").symlink_to(root / "sub" / "a.wav")
    os.mkfifo(root / "pipe")
    (root / "device").symlink_to("/dev/zero")
    pool = make_pool(roots=(str(root),))
    for good in (root / "sub" / "a.wav", root / "good-link.wav", root / "sub" / ".." / "sub" / "a.wav"):
        Followed(pool, good, SHORT).result()
    for bad in (
        *(outside / "a.wav", root / ".." / "root-outside" / "a.wav", root / "link.wav", root / "folder" / "a.wav"),
        *(root / "device", tmp_path / "missing.wav", Path("/etc/passwd"), Path("a.wav"), root),
    ):
        with pytest.raises(AudioRefused, match="not below any of the folders"):
            Followed(pool, bad).result()
    with pytest.raises(AudioRefused, match="not a regular file"):
        Followed(pool, root / "pipe").result()
    for bad in (root / "loop", root / "missing.wav", root / "sub"):
        with pytest.raises(ChoralError) as expected:
            Recording.open(bad)
        with pytest.raises(type(expected.value)) as caught:
            Followed(pool, bad).result()
        assert str(caught.value) == str(expected.value)
    with pytest.raises(AudioNotFound):
        Followed(pool, str(root / "a\0.wav")).result()
    away = server.add("/away.wav", redirect="http://169.254.169.254/latest/meta-data/")
    with pytest.raises(AudioRefused, match=r"169\.254\.169\.254 is not a host on the public internet"):
        Followed(pool, away).result()


def test_nothing_may_be_read_by_default(
    make_pool: Callable[..., RequestPool], tones: Int16Samples, tmp_path: Path, server: LocalServer
) -> None:
    (tmp_path / "a.wav").write_bytes(wav(tones))
    pool = make_pool(roots=(), allowed_hosts=())
    with pytest.raises(AudioRefused, match="not below any of the folders"):
        Followed(pool, tmp_path / "a.wav").result()
    with pytest.raises(AudioRefused, match="allowed hosts"):
        Followed(pool, server.add("/a.wav", wav(tones))).result()


def test_slow_host_does_not_delay_others(
    make_pool: Callable[..., RequestPool], tones: Int16Samples, server: LocalServer
) -> None:
    pool = make_pool(n_requests=1, fetches=4)
    slow = [Followed(pool, server.add(f"/{i}.wav", wav(tones), delay_s=60)) for i in range(20)]
    wait_until(lambda: pool.backlog.fetching == 2)
    with serve() as other:
        for i in range(3):
            Followed(pool, other.add(f"/{i}.wav", wav(tones)), SHORT).result()
    Followed(pool, wav(tones), SHORT).result()  # downloads take no room from other requests
    assert (pool.backlog.fetching, pool.backlog.waiting) == (2, 18)
    for request in slow:
        request.cancel()
    Followed(pool, server.add("/good.wav", wav(tones)), SHORT).result()
    assert pool.backlog.fetching == 0


def test_stalled_and_trickling_downloads_time_out(
    make_pool: Callable[..., RequestPool], tones: Int16Samples, server: LocalServer
) -> None:
    pool = make_pool(fetch_timeout_s=2.0, stall_timeout_s=1.0)
    stalling = Followed(pool, server.add("/stall", wav(tones), delay_s=6))
    trickling = Followed(pool, server.add("/trickle", wav(tones) * 100, delay_s=0.3))
    with pytest.raises(FetchFailed, match="no response in time") as caught:
        stalling.result()
    assert caught.value.is_retryable
    with pytest.raises(FetchFailed, match="took over 2 s"):
        trickling.result()


def test_jobs_and_clients_do_not_delay_each_other(
    make_pool: Callable[..., RequestPool], tones: Int16Samples, tmp_path: Path
) -> None:
    """One process with room for one request of each kind."""
    pool = make_pool(n_requests=1, interactive_timeout_s=2.0)
    for name in ("hang", "slow"):
        (tmp_path / f"{name}.wav").write_bytes(wav(tones))
    jobs = [Followed(pool, tmp_path / "slow.wav") for _ in range(3)]
    wait_until(lambda: pool.backlog.decoding == 1)
    Followed(pool, wav(tones), SHORT, client_waits=True).result()
    with pytest.raises(NotAudio, match=r"could not be decoded in 2 s"):  # which the decoder notices itself
        Followed(pool, tmp_path / "slow.wav", client_waits=True).result()
    assert not any(job.is_done for job in jobs)  # jobs have a longer limit
    pids = pool.pids
    with pytest.raises(NotAudio, match=r"could not be decoded in 2 s"):  # which only killing the process ends
        Followed(pool, tmp_path / "hang.wav", client_waits=True).result()
    for job in jobs:
        job.cancel()
    Followed(pool, wav(tones), SHORT).result()
    assert pool.pids != pids
