"""Decode processes: crashes, hangs and signals affect one file only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from choral.audio.prep.pool import Prepared, PrepPool
from choral.audio.recording import Recording
from choral.errors import (
    NotAudio,
)
from local_server import LocalServer
from media_files import Int16Samples, wav
from prep_faults import FAULTS
from prep_helpers import EMPTY, children, samples_of, wait_until

CRASHES = {
    "segfault": r"crashed the decoder \(SIGSEGV\)",
    "abort": r"crashed the decoder \(SIGABRT\)",
    "exit": r"crashed the decoder \(exit code 3\)",
    "defect": r"crashed the decoder \(exit code 1\)",
    "killed": r"crashed the decoder \(SIGKILL\)",
    "memory": "needs too much memory",
    "hang": "could not be decoded in 5 s",
    "uninterruptible": "could not be decoded in 5 s",
}


def test_crashing_file_fails_alone(make_pool: Callable[..., PrepPool], tones: Int16Samples, tmp_path: Path) -> None:
    assert set(CRASHES) == set(FAULTS)
    pool = make_pool(decode_timeout_s=5)  # includes the start of a process, which is slow on a busy machine
    good = tmp_path / "good.wav"
    futures: list[tuple[str, Future[Prepared]]] = []
    for name in (*CRASHES, "good"):
        (tmp_path / f"{name}.wav").write_bytes(wav(tones))
    for name in CRASHES:
        futures.append((name, pool.submit(tmp_path / f"{name}.wav")))
        futures += [("good", pool.submit(good)) for _ in range(6)]
    for name, future in futures:
        if name == "good":
            with future.result(60).recording as recording:
                assert recording.n_samples == tones.size
        else:
            with pytest.raises(NotAudio, match=CRASHES[name]) as caught:
                future.result(60)
            assert not caught.value.is_retryable
    wait_until(lambda: pool.backlog == EMPTY)


def test_killed_process_is_replaced_and_its_file_retried(pool: PrepPool, tones: Int16Samples, tmp_path: Path) -> None:
    path = tmp_path / "killed-once.wav"
    path.write_bytes(wav(tones))
    with pool.submit(path).result(20).recording as recording, Recording.open(wav(tones)) as expected:
        assert samples_of(recording) == samples_of(expected)
    assert path.with_suffix(".marker").exists()


def test_killed_idle_process_is_replaced(pool: PrepPool, tones: Int16Samples, tmp_path: Path) -> None:
    pool.submit(wav(tones)).result(20).recording.close()
    for pid in children():
        os.kill(pid, signal.SIGKILL)
    pool.submit(wav(tones)).result(20).recording.close()


def test_processes_ignore_stop_signals(pool: PrepPool, tones: Int16Samples) -> None:
    pool.submit(wav(tones)).result(20).recording.close()
    before = children()
    for pid in before:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
    pool.submit(wav(tones)).result(20).recording.close()
    assert before <= children()


@pytest.mark.parametrize("name", ["hang", "uninterruptible"])
def test_processes_die_with_their_parent(tmp_path: Path, tones: Int16Samples, name: str) -> None:
    path = tmp_path / f"{name}.wav"
    path.write_bytes(wav(tones))
    code = (
        "import sys, threading; sys.path.insert(0, sys.argv[1])\n"
        "from choral.audio.prep.pool import PrepPool\n"
        "from choral.audio.prep.settings import PrepSettings\n"
        "from prep_faults import decode_with_faults\n"
        "pool = PrepPool(PrepSettings(processes=1, roots=(sys.argv[2],)), decode=decode_with_faults)\n"
        "pool.submit(sys.argv[3])\n"
        "print('ready', flush=True)\n"
        "threading.Event().wait()\n"
    )
    here = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", code, here, str(tmp_path), str(path)], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        found = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")

        def hanging() -> list[str]:
            every = [
                Path(f"/proc/{parent.pid}/task/{task}/children").read_text().split()
                for task in os.listdir(f"/proc/{parent.pid}/task")
            ]
            return [pid for pids in every for pid in pids]

        assert found.exists()
        wait_until(lambda: len(hanging()) == 1)
        child = Path(f"/proc/{hanging()[0]}")
        time.sleep(0.5)  # into the hang
        parent.kill()
    wait_until(lambda: not child.exists() or "State:\tZ" in (child / "status").read_text(), 5)


def test_processes_inherit_no_other_socket(pool: PrepPool, tones: Int16Samples, server: LocalServer) -> None:
    pool.submit(server.add("/a.wav", wav(tones))).result(20).recording.close()
    (pid,) = children()
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    sockets = {link for link in links if link.startswith("socket:")}
    assert len(sockets) == 1
