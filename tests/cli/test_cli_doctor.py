"""`choral doctor` with packages, models and folders that work, are missing or are broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

import choral as package
from choral.cli.doctor_findings import Finding, State, first_line
from choral.cli.doctor_hardware import Driver, Gpu, free_and_total_bytes, hardware_section
from choral.cli.doctor_software import ENGINES, engines_section, import_package, with_kernels

Run = Callable[..., Any]
SOURCE = Path(package.__file__).parent.parent


class Report:
    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.code, self.errors = process.returncode, process.stderr
        self.out = process.stdout
        self.lines = process.stdout.splitlines()

    def line(self, subject: str) -> str:
        """The mark, text and fix of the only line about this subject."""
        found = [i for i, line in enumerate(self.lines) if re.match(rf"  . {re.escape(subject)}  ", line)]
        assert len(found) == 1, self.out
        mark = self.lines[found[0]][2].strip()
        texts = [self.lines[found[0]][4 + len(subject) :].strip()]
        texts += [line.strip() for line in self.lines[found[0] + 1 : found[0] + 2] if line.strip().startswith("fix: ")]
        return " ".join([mark, *texts]).strip()


@pytest.fixture
def doctor(tmp_path: Path) -> Callable[..., Report]:
    """Run it with this Python's packages, except for some that are missing and some replaced by this code."""

    def run(
        *arguments: object,
        without: Collection[str] = (),
        broken: Mapping[str, str] | None = None,
        env: dict[str, str] | None = None,
    ) -> Report:
        site = tmp_path / "site"
        site.mkdir()
        for name, code in (broken or {}).items():
            (site / f"{name}.py").write_text(code)
        absent = {*without, *(broken or ())}
        for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for entry in Path(folder).iterdir():
                if re.split(r"[-.]", entry.name)[0] not in absent and not (site / entry.name).exists():
                    (site / entry.name).symlink_to(entry)
        process = subprocess.run(
            [sys.executable, "-S", "-m", "choral", "doctor", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{SOURCE}", **(env or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.stderr == ""
        return Report(process)

    return run


def test_report_of_a_working_machine(doctor: Callable[..., Report], tiny_en_pt: Path) -> None:
    report = doctor("--device", "cpu")
    assert report.code == 0
    assert report.lines[0].startswith(f"Choral {package.__version__} with Python {sys.version_info.major}.")
    assert re.fullmatch(r"ctranslate2 on cpu in int8, threads: \d+; for one file .*", report.line("engine"))
    assert re.fullmatch(r"torch on cpu in (int8|float32), threads: \d+; many windows .*", report.line("many callers"))
    assert re.match(r".*, \d+ (of \d+ )?cores$", report.line("processor"))
    assert re.match(r"\d+\.\d+ [GM]B free of \d+\.\d+ [GM]B$", report.line("memory"))
    assert re.match(r"\d+\.\d+[^ ]*, .*", report.line("torch"))
    assert re.match(r"\d+\.\d+[^ ]*, on the processor in .*float32", report.line("ctranslate2"))
    for name in ("numpy", "av", "tiktoken", "rich", "onnxruntime"):
        assert re.match(r"\d+\.\d+[^ ]* \(.*\)$", report.line(name)), name
    assert f"Models in {tiny_en_pt.parent.parent}" in report.lines
    assert report.line("tiny.en") == "75.6 MB"
    for name in ("models", "cache", "temporary files"):
        assert re.match(r"(! )?/.*, (only )?\d+\.\d+ [GM]B free", report.line(name)), name
    assert report.lines[-1] == "Transcribing works here."


def test_several_devices_are_named(doctor: Callable[..., Report]) -> None:
    line = doctor("--engine", "torch", "--devices", "cpu,cpu", "--threads", "3").line("engine")
    assert re.fullmatch(r"torch on cpu, cpu in (int8|float32), threads: 3; as requested", line)


@pytest.mark.parametrize(
    ("has_triton", "text", "fix"),
    [(True, "torch on cuda in float16, with Choral's own kernels", None),
     (False, "torch on cuda in float16, and slow without Triton", "pip install triton")],
)  # fmt: skip
def test_gpu_without_triton_is_noted(has_triton: bool, text: str, fix: str | None) -> None:
    found = with_kernels(Finding("engine", "torch on cuda in float16"), has_triton=has_triton)
    assert (found.text, found.fix) == (text, fix)
    assert (found.state is State.NOTE) is not has_triton


def test_without_torch_ctranslate2_is_used(doctor: Callable[..., Report]) -> None:
    report = doctor(without=["torch"])
    assert report.code == 0
    assert (
        report.line("torch")
        == "! not installed (an engine, the faster for many callers and on GPUs) fix: pip install 'choral[torch]'"
    )
    assert re.fullmatch(r"ctranslate2 on (cpu|cuda:0) in \w+.*; PyTorch is not installed", report.line("engine"))


def test_without_any_engine_it_fails(doctor: Callable[..., Report]) -> None:
    report = doctor(without=["torch", "ctranslate2"])
    assert report.code == 7
    assert (
        report.line("engine")
        == "✗ transcribing needs CTranslate2 or PyTorch: pip install ctranslate2, or 'choral[torch]'"
    )
    assert report.lines[-1] == "Transcribing does not work here: fix what is marked ✗ above."


@pytest.mark.parametrize("name", ["av", "numpy"])
def test_missing_required_package(doctor: Callable[..., Report], name: str) -> None:
    report = doctor(without=["torch", name])
    assert report.code == 7
    assert re.match(rf"✗ not installed \(.*\) fix: pip install '?{name}", report.line(name))


def test_broken_engine_is_reported_with_a_fix(doctor: Callable[..., Report]) -> None:
    code = "raise OSError('libcudart.so.99: cannot open shared object file\\nand a page of advice')"
    report = doctor("--engine", "torch", broken={"torch": code})
    assert report.code == 7
    assert report.line("torch").startswith(
        "! installed, but it cannot be loaded: libcudart.so.99: cannot open shared object"
    )
    assert "advice" not in report.out
    assert report.line("engine") == (
        "✗ torch, which cannot be loaded fix: reinstall it: pip install --force-reinstall torch; "
        "until then, use --engine ctranslate2"
    )


def test_other_engine_works_when_one_is_broken(doctor: Callable[..., Report]) -> None:
    report = doctor("--engine", "ctranslate2", "--device", "cpu", broken={"torch": "import no_such_part_of_torch"})
    assert report.code == 0
    assert "cannot be loaded: No module named 'no_such_part_of_torch'" in report.line("torch")
    assert report.line("engine").startswith("ctranslate2 on cpu in ")


def test_broken_voice_detector_is_a_note(doctor: Callable[..., Report]) -> None:
    report = doctor(without=["torch"], broken={"onnxruntime": "raise ImportError('DLL load failed')"})
    assert report.code == 0
    assert report.line("onnxruntime") == (
        "! installed, but it cannot be loaded: DLL load failed (the voice detector, for --vad and --mode batched) "
        "fix: pip install onnxruntime"
    )


def test_no_models_installed(doctor: Callable[..., Report], tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "CHORAL_MODELS": "", "XDG_CACHE_HOME": "", "HF_HOME": "", "HF_HUB_CACHE": ""}
    report = doctor("--device", "cpu", without=["torch"], env=home)
    assert report.code == 0
    assert f"Models in {tmp_path}/.cache/choral/models" in report.lines
    assert report.line("model") == "! the model 'base' is not on this machine: get it with `choral models pull base`"
    assert not (tmp_path / ".cache").exists(), "doctor writes nothing"


def test_model_folder_that_cannot_be_written(doctor: Callable[..., Report], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {"CHORAL_MODELS": str(tmp_path / "file/models"), "HF_HOME": str(tmp_path / "none")}
    report = doctor("--device", "cpu", without=["torch"], env=env)
    assert report.code == 7
    assert report.line("models") == (
        f"✗ {tmp_path}/file/models cannot be written: Not a directory "
        "fix: set CHORAL_MODELS to a folder that you may write to"
    )


def test_unwritable_folders_are_notes_for_an_installed_model(doctor: Callable[..., Report], tiny_en_ct2: Path) -> None:
    env = {"CHORAL_MODELS": "/proc/models", "XDG_CACHE_HOME": "/proc/cache", "CHORAL_SAMPLES": "/proc/samples"}
    report = doctor("--model", tiny_en_ct2, "--device", "cpu", without=["torch"], env=env)
    assert report.code == 0, report.out
    assert report.line("models").startswith("! /proc/models cannot be written: ")
    assert report.line("cache").startswith("! /proc/cache/choral cannot be written: ")
    assert report.line("model") == f"{tiny_en_ct2}, from {tiny_en_ct2}"
    assert re.search(r"one second of noise in \d+\.\d\d s", report.line("transcribed"))


def test_damaged_model(doctor: Callable[..., Report], tmp_path: Path) -> None:
    (tmp_path / "models/base").mkdir(parents=True)
    report = doctor("--device", "cpu", without=["torch"], env={"CHORAL_MODELS": str(tmp_path / "models")})
    assert report.code == 7
    assert re.match(r"! damaged: .* has no manifest\.json fix: choral models remove base", report.line("base"))
    assert report.line("model").startswith("✗ the model 'base' is damaged: ")
    assert report.lines[-1] == "Transcribing does not work here: fix what is marked ✗ above."


def test_trial_shows_the_log_line_of_the_engine(choral: Run, tiny_en_pt: Path) -> None:
    result = choral("doctor", "--model", tiny_en_pt, "--device", "cpu", "--compute-type", "float32")
    assert (result.code, result.errors) == (0, "")
    assert re.search(
        r"^    engine +torch on cpu in float32: encoder budget 32,768 frames, at most 21 windows per step; "
        r"\d+ slots of \d+\.\d MB; encoder cache [\d.]+ [MG]B$",
        result.out,
        re.MULTILINE,
    )
    assert re.search(r"^    transcribed +one second of noise in \d+\.\d\d s$", result.out, re.MULTILINE)


def test_unknown_model(doctor: Callable[..., Report]) -> None:
    report = doctor("--model", "bass", "--device", "cpu", without=["torch"])
    assert report.code == 7
    assert "✗ model" in report.out
    assert "there is no model called 'bass'. Did you mean base" in report.out


def test_missing_device(doctor: Callable[..., Report]) -> None:
    report = doctor("--device", "cuda", "--engine", "ctranslate2", without=["torch"], env={"CUDA_VISIBLE_DEVICES": ""})
    assert report.code == 7
    assert report.line("engine").startswith("✗ device cuda: CTranslate2 finds no CUDA device here")


def test_gpu_that_the_engines_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("they can, here")
    driver = Driver("12.4", (Gpu("NVIDIA Something", 8_000_000_000),))
    section = engines_section({engine.name: import_package(engine) for engine in ENGINES}, driver)
    ctranslate2, own = section.findings
    assert ctranslate2.state is own.state is State.NOTE
    assert ctranslate2.text.endswith("; it finds no GPU")
    if torch.version.cuda is None:
        assert own.text.endswith(" is built without CUDA: it cannot use the GPU")
        assert own.fix is not None
        assert "build with CUDA" in own.fix
    else:
        assert f" is built for CUDA {torch.version.cuda} and finds no GPU: " in own.text
        assert own.fix is not None
        assert "it supports CUDA 12.4" in own.fix


def test_gpus_and_driver_problems() -> None:
    whole = hardware_section(Driver("12.4", (Gpu("NVIDIA Something", 8_000_000_000),))).findings[-1]
    assert (whole.text, whole.state) == ("NVIDIA Something, 8.00 GB, driver for CUDA 12.4", State.OK)
    hidden = hardware_section(Driver("12.4", problem="the driver shows no GPU")).findings[-1]
    assert (hidden.text, hidden.state) == ("the driver shows no GPU", State.NOTE)


def test_free_memory_is_below_the_total() -> None:
    known = free_and_total_bytes()
    if known is None:
        pytest.skip("this system does not say")
    free_bytes, total_bytes = known
    assert 0 < free_bytes < total_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_first_line_of_an_error() -> None:
    assert first_line(ValueError("\n  what it is\nwhat to do")) == "what it is"
    assert first_line(ValueError()) == "ValueError"
