"""An engine in a process of its own: loading, the end of the process and of its parent, and a restart."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from concurrent.futures import wait
from pathlib import Path

import pytest

from choral.config import EngineSettings
from choral.errors import EngineClosed, UsageError
from choral.serving.engine_client import LOST
from choral.serving.engine_process import EngineProcess
from fake_model import load_fake, wait_for
from fake_runner import SOON_S, window


def test_killed_engine_fails_its_windows_and_a_restarted_one_serves_again() -> None:
    reasons: list[str] = []
    downloads: list[tuple[int, int | None]] = []
    with contextlib.closing(
        EngineProcess(
            "fake",
            EngineSettings(),
            on_exit=reasons.append,
            on_download=lambda *progress: downloads.append(progress),
            load=load_fake,
        )
    ) as process:
        clients = [process.connect().engine for _ in range(2)]
        process.wait_until_ready(SOON_S)
        assert (process.failure, downloads) == (None, [(1, 2)])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(process.pid, number)
        assert clients[0].submit(window(1)).result(SOON_S).tokens == (0, 1, 2)

        endless = [client.submit(window(100 + number)) for number in range(4) for client in clients]
        os.kill(process.pid, signal.SIGKILL)
        assert wait(endless, SOON_S).not_done == set()
        for pending in endless:
            with pytest.raises(EngineClosed, match=LOST):
                pending.result()
        wait_for(lambda: reasons == ["the engine's process has ended (SIGKILL)"])
        assert (process.failure, clients[0].failure) == (reasons[0], LOST)
        with pytest.raises(EngineClosed, match=LOST):
            process.connect()

        process.restart()
        engine = process.connect().engine
        assert engine.submit(window(1)).result(SOON_S).tokens == (0, 1, 2)
        endless = [engine.submit(window(100))]
        assert engine.stats.windows == 1  # the reply comes after the submission: the window is in the engine
        assert process.drain(0.05) is False
        with pytest.raises(EngineClosed, match="was closed"):
            engine.submit(window(2)).result(SOON_S)
        engine.cancel(endless[0])
        assert process.drain(SOON_S) is True
    assert process.failure == "the engine's process was closed"
    assert len(reasons) == 1


def test_model_that_cannot_be_loaded_raises_its_own_error() -> None:
    with contextlib.closing(EngineProcess("missing", EngineSettings(), load=load_fake)) as process:
        with pytest.raises(UsageError, match=r"^there is no such fake$"):
            process.wait_until_ready(SOON_S)
        with pytest.raises(EngineClosed):
            process.connect()
        assert process.failure == "there is no such fake"


def test_engine_dies_with_its_parent() -> None:
    code = (
        "import sys, time\n"
        "from choral.config import EngineSettings\n"
        "from choral.serving.engine_process import EngineProcess\n"
        "from fake_model import load_fake\n"
        "process = EngineProcess('fake', EngineSettings(), load=load_fake)\n"
        "process.wait_until_ready()\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    with parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "(zombie)" in Path(f"/proc/{pid}/status").read_text())
