"""Request processes that crash, hang, are killed or cancelled: only the request that caused it fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

import choral
from choral.errors import ChoralError, EngineError, NotAudio
from choral.options import TranscribeOptions
from choral.serving import connected_process, request_dispatcher
from choral.serving.engine_server import EngineServer
from choral.serving.pool_settings import PoolSettings
from choral.serving.request_pool import RequestBacklog, RequestPool
from local_server import LocalServer
from media_files import Int16Samples, read_clip, wav
from request_faults import FAULTS
from request_helpers import Followed, children_of, is_alive, shape_of, wait_until

EMPTY = RequestBacklog(waiting=0, fetching=0, decoding=0, transcribing=0)


def missing_decode(*_: object) -> tuple[str, ...]:
    """Made unimportable below: a process that cannot import its decoder ends before it is ready."""
    raise AssertionError


missing_decode.__module__ = "no_such_module"
SHORT = TranscribeOptions(temperature=0.0, max_tokens=2)  # the text does not matter
CRASHES = {
    "segfault": r"crashed the decoder \(SIGSEGV\)",
    "abort": r"crashed the decoder \(SIGABRT\)",
    "exit": r"crashed the decoder \(exit code 3\)",
    "defect": r"crashed the decoder \(ZeroDivisionError\)",
    "killed": r"crashed the decoder \(SIGKILL\)",
    "memory": "needs too much memory",
    "hang": "could not be decoded in 3 s",
    "uninterruptible": "could not be decoded in 3 s",
}


def files(folder: Path, samples: Int16Samples, *names: str) -> list[Path]:
    paths = [folder / f"{name}.wav" for name in names]
    for path in paths:
        path.write_bytes(wav(samples))
    return paths


def test_crashing_file_fails_alone(make_pool: Callable[..., RequestPool], tones: Int16Samples, tmp_path: Path) -> None:
    assert set(CRASHES) == set(FAULTS)
    pool = make_pool(n_processes=2, n_requests=3, decode_timeout_s=3.0)
    (good,) = files(tmp_path, tones, "good")
    requests = []
    for name, path in zip(CRASHES, files(tmp_path, tones, *CRASHES), strict=True):
        requests += [(name, Followed(pool, path, SHORT)), ("good", Followed(pool, good, SHORT))]
    for name, request in requests:
        if name == "good":
            assert request.result(90).duration == tones.size / 16_000
        else:
            with pytest.raises(NotAudio, match=CRASHES[name]) as caught:
                request.result(90)
            assert not caught.value.is_retryable
    wait_until(lambda: pool.backlog == EMPTY)
    wait_until(lambda: len(pool.pids) <= 2)  # the process of those that may have caused a crash has ended


def test_killed_process_costs_no_request(make_pool: Callable[..., RequestPool], model: choral.Model, jfk: Path) -> None:
    """Killed while four requests run in it: all finish right, and each segment is reported once."""
    pool = make_pool(roots=None)
    transcript = model.transcribe(jfk)
    requests = [Followed(pool, jfk) for _ in range(4)]
    wait_until(lambda: pool.backlog.transcribing == 4)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGKILL)
    for request in requests:
        assert shape_of(request.result()) == shape_of(transcript)
        assert [segment.text for segment in request.segments] == [segment.text for segment in transcript.segments]
        assert len(request.opened) == 1
        assert request.progress[-1][0] == transcript.duration
    assert pid not in pool.pids


def test_segments_are_reported_once_across_a_kill(
    make_pool: Callable[..., RequestPool], model: choral.Model, speech_clips: list[Path]
) -> None:
    samples = np.concatenate([read_clip(path) for path in speech_clips] * 2)
    options = TranscribeOptions(temperature=0.0)
    pool = make_pool()
    request = Followed(pool, samples, options)
    wait_until(lambda: len(request.segments) > 1, 60)
    os.kill(pool.pids[0], signal.SIGKILL)
    transcript = request.result(120)
    assert [segment.id for segment in request.segments] == list(range(len(transcript.segments)))
    assert transcript.text == "".join(segment.text for segment in request.segments)
    done = [done_s for done_s, _ in request.progress]
    assert done == sorted(done)


def test_process_killed_once_while_decoding_is_replaced(
    make_pool: Callable[..., RequestPool], tones: Int16Samples, tmp_path: Path
) -> None:
    pool = make_pool()
    (path,) = files(tmp_path, tones, "killed-once")
    assert Followed(pool, path, SHORT).result().duration == tones.size / 16_000
    assert path.with_suffix(".marker").exists()
    idle = set(pool.pids)
    for pid in idle:
        os.kill(pid, signal.SIGKILL)
    assert Followed(pool, wav(tones), SHORT).result().duration == tones.size / 16_000
    assert not idle & set(pool.pids)


def test_processes_ignore_stop_signals_and_inherit_no_socket(
    make_pool: Callable[..., RequestPool], tones: Int16Samples, server: LocalServer
) -> None:
    pool = make_pool()
    Followed(pool, server.add("/a.wav", wav(tones)), SHORT).result()
    (pid,) = pool.pids
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    Followed(pool, wav(tones), SHORT).result()
    assert pool.pids == [pid]
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert len({link for link in links if link.startswith("socket:")}) == 2  # the parent, the engine


def test_cancel_in_every_phase(
    make_pool: Callable[..., RequestPool], tones: Int16Samples, server: LocalServer, tmp_path: Path, jfk: Path
) -> None:
    pool = make_pool(n_requests=2, fetches=1, roots=None)
    (path,) = files(tmp_path, tones, "hang")
    decoding = Followed(pool, path)
    wait_until(lambda: pool.backlog.decoding == 1)
    transcribing = Followed(pool, jfk, TranscribeOptions(beam_size=5, word_timestamps=True))
    wait_until(lambda: pool.backlog.transcribing == 1)
    waiting = Followed(pool, path)
    fetching, queued = [Followed(pool, server.add("/a.wav", wav(tones), delay_s=30)) for _ in range(2)]
    wait_until(lambda: pool.backlog == RequestBacklog(waiting=2, fetching=1, decoding=1, transcribing=1))
    for request in (queued, waiting, fetching, decoding, transcribing):
        cancelled_s = time.monotonic()
        request.cancel()
        with pytest.raises(CancelledError):
            request.result(2)
        assert time.monotonic() - cancelled_s < 2
        request.cancel()
    # The slots are free again: at once, or when the process that hangs has been replaced.
    others = [Followed(pool, wav(tones), SHORT) for _ in range(3)]
    for request in [*others, Followed(pool, server.add("/b.wav", wav(tones)), SHORT)]:
        assert request.result(30).duration == tones.size / 16_000
    wait_until(lambda: pool.backlog == EMPTY)


def test_cancelled_windows_leave_the_engine(make_pool: Callable[..., RequestPool], model: choral.Model) -> None:
    pool = make_pool()
    noise = np.random.default_rng(0).normal(0, 0.1, 30 * 16_000).astype(np.float32)
    request = Followed(pool, noise, TranscribeOptions(beam_size=5, temperature=0.0))
    engine = model.transcriber.engine
    wait_until(lambda: engine.n_in_flight > 0)
    request.cancel()
    wait_until(lambda: engine.n_in_flight == 0, 10)


def test_close_cancels_all_requests(
    make_pool: Callable[..., RequestPool], tones: Int16Samples, server: LocalServer, tmp_path: Path
) -> None:
    pool = make_pool(n_processes=2, n_requests=1, fetches=2, fetches_per_host=2)
    (path,) = files(tmp_path, tones, "hang")
    requests = [Followed(pool, audio) for audio in [path] * 4 + [server.add("/a.wav", wav(tones), delay_s=30)] * 4]
    wait_until(lambda: (pool.backlog.decoding, pool.backlog.fetching) == (2, 2))
    pids = pool.pids
    pool.close()
    pool.close()
    for request in requests:
        with pytest.raises(CancelledError):
            request.result(1)
    assert not any(map(is_alive, pids))
    with pytest.raises(RuntimeError, match="closed"):
        Followed(pool, wav(tones))


def test_processes_are_recycled(
    make_pool: Callable[..., RequestPool], tones: Int16Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_dispatcher, "MAX_REQUESTS_PER_PROCESS", 2)
    pool = make_pool(n_requests=2)
    seen: set[int] = set()
    for _ in range(3):
        requests = [Followed(pool, wav(tones), SHORT) for _ in range(2)]
        wait_until(lambda: bool(pool.pids))
        seen |= set(pool.pids)
        for request in requests:
            request.result()
    assert len(seen) == 3


def test_kept_processes_are_started_before_requests_and_replaced(
    make_pool: Callable[..., RequestPool], tones: Int16Samples
) -> None:
    pool = make_pool(n_processes=3, n_kept=2)
    wait_until(lambda: len(pool.pids) == 2)
    kept = pool.pids
    Followed(pool, wav(tones), SHORT).result()
    assert pool.pids == kept
    os.kill(kept[0], signal.SIGKILL)
    wait_until(lambda: len(set(pool.pids) - {kept[0]}) == 2)


def test_no_descriptor_leaks(
    make_pool: Callable[..., RequestPool], tones: Int16Samples, tmp_path: Path, server: LocalServer
) -> None:
    pool = make_pool()
    url = server.add("/a.wav", wav(tones))
    (crash,) = files(tmp_path, tones, "segfault")

    def work() -> int:
        for request in [Followed(pool, wav(tones), SHORT) for _ in range(8)]:  # four of them wait
            request.cancel()
        for audio in (wav(tones), tones, url, tmp_path / "no.wav", b"nothing", crash, wav(tones)):
            with contextlib.suppress(ChoralError):
                Followed(pool, audio, SHORT).result()
        has_forgotten = threading.Event()  # the last request, of which the pool has reported the end
        pool._call(lambda _: has_forgotten.set(), None)
        assert has_forgotten.wait(20)
        return len(os.listdir("/proc/self/fd"))

    assert work() == work()


def test_process_that_cannot_start_fails_its_requests(engine_server: EngineServer, tones: Int16Samples) -> None:
    settings = PoolSettings(n_processes=1, n_requests=2)
    with (
        RequestPool(engine_server.add_client, settings, decode=missing_decode) as pool,
        pytest.raises(EngineError, match=r"could not start a request process \(exit code 1\)"),
    ):
        Followed(pool, wav(tones)).result()


def test_no_memory_for_a_process(
    make_pool: Callable[..., RequestPool], tones: Int16Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process cannot be started: its request fails. A second one cannot: the first does the work."""
    pool = make_pool(n_processes=2)
    start = connected_process.start_child

    def refuse(*_: object) -> NoReturn:
        raise EngineError("no memory")

    monkeypatch.setattr(connected_process, "start_child", refuse)
    with pytest.raises(EngineError, match="could not start a request process: no memory"):
        Followed(pool, wav(tones), SHORT).result()
    monkeypatch.setattr(connected_process, "start_child", start)
    Followed(pool, wav(tones), SHORT).result()
    monkeypatch.setattr(connected_process, "start_child", refuse)
    for request in [Followed(pool, wav(tones), SHORT) for _ in range(6)]:
        request.result()
    assert len(pool.pids) == 1


def test_processes_die_with_their_parent(tmp_path: Path, tones: Int16Samples, tiny_en_pt: Path) -> None:
    hang, uninterruptible = files(tmp_path, tones, "hang", "uninterruptible")
    code = (
        "import sys, threading; sys.path.insert(0, sys.argv[4])\n"
        "import choral\n"
        "from choral.serving.engine_server import EngineServer\n"
        "from choral.serving.pool_settings import PoolSettings\n"
        "from choral.serving.request_pool import RequestPool\n"
        "from request_faults import decode_with_faults\n"
        "from request_helpers import Followed\n"
        "server = EngineServer(choral.load(sys.argv[1], device='cpu').transcriber)\n"
        "pool = RequestPool(server.add_client, PoolSettings(n_processes=2, n_requests=1), decode=decode_with_faults)\n"
        "requests = [Followed(pool, path) for path in sys.argv[2:4]]\n"
        "while pool.backlog.decoding < 2: threading.Event().wait(0.01)\n"
        "print('ready', flush=True)\n"
        "threading.Event().wait()\n"
    )
    here = Path(__file__).parent
    command = [sys.executable, "-c", code, str(tiny_en_pt), str(hang), str(uninterruptible), str(here)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        pids = children_of(parent.pid)
        assert len(pids) == 2
        time.sleep(1.0)  # into the hang
        assert all(map(is_alive, pids))
        parent.kill()
    wait_until(lambda: not any(map(is_alive, pids)), 5)
