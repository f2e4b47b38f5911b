"""Which engine and precision are chosen, for every machine and workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from choral.common import processor
from choral.config import EngineSettings
from choral.engine import engine_plan
from choral.engine.engine_plan import choose_engine, optimize_for, plan_engine
from choral.errors import MissingDependency
from choral.model import int8
from choral.options import TranscribeOptions

Machine = Callable[..., None]
ONE = EngineSettings(device="cpu")
MANY = replace(ONE, optimize_for="throughput")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    def set_up(installed: tuple[str, ...] = ("torch", "ctranslate2"), gpu: bool = False) -> None:
        monkeypatch.setattr(engine_plan, "is_installed", lambda engine: engine in installed)
        monkeypatch.setattr(engine_plan, "_may_have_gpu", lambda: gpu)
        monkeypatch.setattr(engine_plan, "_torch_finds_gpu", lambda: gpu)

    return set_up


@pytest.mark.parametrize(
    ("here", "settings", "engine", "reason"),
    [
        ({}, ONE, "ctranslate2", "for one file"),
        ({}, MANY, "torch", "many windows"),
        ({"installed": ("ctranslate2",)}, MANY, "ctranslate2", "PyTorch is not installed"),
        ({"installed": ("torch",)}, ONE, "torch", "CTranslate2 is not installed"),
        ({"gpu": True}, replace(ONE, device="auto"), "torch", "GPUs"),
        ({"gpu": False}, replace(ONE, device="auto"), "ctranslate2", "for one file"),
        ({"gpu": True}, ONE, "ctranslate2", "for one file"),
        ({}, replace(ONE, device="cuda:1"), "torch", "GPUs"),
        ({}, replace(ONE, devices="0,1"), "torch", "GPUs"),
        ({}, replace(ONE, compute_type="float32"), "torch", "reference in float32"),
        ({}, replace(ONE, compute_type="int8"), "ctranslate2", "for one file"),
        ({}, replace(ONE, engine="torch"), "torch", "as requested"),
        ({}, replace(MANY, engine="ctranslate2"), "ctranslate2", "as requested"),
    ],
)
def test_choice(machine: Machine, here: dict[str, Any], settings: EngineSettings, engine: str, reason: str) -> None:
    machine(**here)
    found, why = choose_engine(settings)
    assert found == engine
    assert reason in why


@pytest.mark.parametrize(("has_vnni", "compute_type"), [(True, "int8"), (False, "float32")])
def test_many_windows_run_in_int8_where_it_is_fast(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, has_vnni: bool, compute_type: str
) -> None:
    machine()
    monkeypatch.setattr(int8, "has_vnni", lambda: has_vnni)
    assert plan_engine(MANY).compute_type == compute_type


def test_missing_packages_are_named(machine: Machine) -> None:
    machine(installed=())
    with pytest.raises(MissingDependency, match="CTranslate2 or PyTorch"):
        plan_engine(ONE)
    with pytest.raises(MissingDependency, match="needs PyTorch"):
        plan_engine(replace(ONE, engine="torch"))


@pytest.mark.parametrize(
    ("n_inputs", "flags", "hint"),
    [(1, "avx2 avx512_vnni", "latency"), (2, "avx2 avx512_vnni", "throughput"), (2, "avx2", "latency")],
)
def test_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_inputs: int, flags: str, hint: str) -> None:
    set_flags(flags, tmp_path, monkeypatch)
    assert optimize_for(n_inputs, TranscribeOptions(mode="batched")) == hint
    assert optimize_for(n_inputs, TranscribeOptions(hotwords="Choral")) == "throughput"


def test_int8_of_many_windows_without_vnni(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine()
    set_flags("avx2", tmp_path, monkeypatch)
    assert choose_engine(replace(MANY, compute_type="int8"))[0] == "ctranslate2"
    set_flags("avx512_vnni", tmp_path, monkeypatch)
    assert choose_engine(replace(MANY, compute_type="int8"))[0] == "torch"


def set_flags(flags: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the processor has."""
    cpuinfo = folder / "cpuinfo"
    cpuinfo.write_text(f"flags\t\t: fpu {flags}\n")
    monkeypatch.setattr(processor, "_CPUINFO", cpuinfo)


@pytest.mark.parametrize(
    ("options", "hint"),
    [({"beam_size": 8}, "latency"), ({"beam_size": 9}, "throughput"), ({"best_of": 9}, "throughput"),
     ({"token_logprobs": True}, "latency"), ({"token_logprobs": True, "beam_size": 2}, "throughput")],
)  # fmt: skip
def test_one_file_that_ctranslate2_cannot_do_goes_to_torch(options: dict[str, Any], hint: str) -> None:
    assert optimize_for(1, TranscribeOptions(**options)) == hint


def test_plan_says_what_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(processor, "usable_cpus", lambda: {0})
    assert str(plan_engine(ONE)).startswith("ctranslate2 on cpu in int8, threads: 1; ")
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert plan_engine(ONE).threads == 3
    assert plan_engine(replace(ONE, threads=5)).threads == 5
    assert plan_engine(replace(ONE, compute_type="float32")).compute_type == "float32"
