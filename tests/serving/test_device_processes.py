"""A model on several devices, each with an engine process."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
import pytest

import choral
from choral.engine.group import EngineGroup, as_local
from choral.errors import ModelNotFound, UsageError
from choral.serving.device_processes import load_on_devices
from choral.serving.supervised_engine import SupervisedEngine
from fake_model import wait_for
from request_helpers import is_alive

SETTINGS = choral.EngineSettings(engine="torch", devices="cpu,cpu", threads=1, compute_type="float32")


def test_windows_of_a_killed_process_go_to_another_device(tiny_en_pt: Path, speech_clips: list[Path]) -> None:
    with choral.load(tiny_en_pt, device="cpu", compute_type="float32") as alone:
        expected = [alone.transcribe(clip).text for clip in speech_clips]
    with choral.load(tiny_en_pt, settings=SETTINGS) as model:
        group = model._engine
        assert isinstance(group, EngineGroup)
        engines = [engine for engine in group._engines if isinstance(engine, SupervisedEngine)]
        pids = [engine.pid for engine in engines]
        assert len(set(pids)) == model._engine.n_devices == 2
        with ThreadPoolExecutor(8) as pool:
            texts = pool.map(lambda clip: model.transcribe(clip).text, speech_clips * 2)
            wait_for(lambda: all(engine.n_in_flight for engine in engines))
            os.kill(pids[0], signal.SIGKILL)
            assert list(texts) == expected * 2
        assert model.failure is None
        wait_for(lambda: not model.failed_devices)  # started again
        assert engines[0].pid != pids[0]
        model.self_test()
        with pytest.raises(UsageError, match="one device"):
            as_local(group)
        pids = [engine.pid for engine in engines]
    assert not any(map(is_alive, pids))


def test_errors_of_loading_leave_no_process(tiny_en_pt: Path) -> None:
    with pytest.raises(ModelNotFound):
        choral.load("no-such-model", settings=SETTINGS)
    with pytest.raises(UsageError, match="fp8"):
        choral.load(tiny_en_pt, settings=choral.EngineSettings(engine="torch", devices="cpu,cpu", compute_type="fp8"))


def test_a_server_has_a_process_for_the_queue_before_them(tiny_en_pt: Path, jfk: Path) -> None:
    before = psutil.Process().children()  # of other tests
    with closing(SupervisedEngine(str(tiny_en_pt), SETTINGS, load=load_on_devices)) as engine:
        assert (engine.n_devices, engine.device) == (2, "cpu, cpu")
        engines_of_devices = [each.pid for each in psutil.Process(engine.pid).children()]
        assert len(engines_of_devices) == 2
        assert len(set(psutil.Process().children()) - set(before)) == 1
        model = choral.Model("tiny.en", engine, engine.transcriber)
        text = model.transcribe(jfk).text
        assert "country" in text
        first_pid = engine.pid
        os.kill(first_pid, signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, engines_of_devices)))
        wait_for(lambda: engine.failure is None and engine.pid != first_pid)
        assert model.transcribe(jfk).text == text
