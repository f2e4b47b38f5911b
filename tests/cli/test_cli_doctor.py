"""`choral doctor` where things are fine, missing, broken or closed: in each case what it says and how it exits."""

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


class Told:
    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.code, self.errors = process.returncode, process.stderr
        self.out = process.stdout
        self.lines = process.stdout.splitlines()

    def line(self, subject: str) -> str:
        """The mark and the text of the only line about this, with its fix."""
        found = [i for i, line in enumerate(self.lines) if re.match(rf"  . {re.escape(subject)}  ", line)]
        assert len(found) == 1, self.out
        mark = self.lines[found[0]][2].strip()
        texts = [self.lines[found[0]][4 + len(subject) :].strip()]
        texts += [line.strip() for line in self.lines[found[0] + 1 : found[0] + 2] if line.strip().startswith("fix: ")]
        return " ".join([mark, *texts]).strip()


@pytest.fixture
def doctor(tmp_path: Path) -> Callable[..., Told]:
    """Runs it with the packages of this Python, but some of them gone and some replaced by these lines of code."""

    def run(
        *arguments: object,
        without: Collection[str] = (),
        broken: Mapping[str, str] | None = None,
        env: dict[str, str] | None = None,
    ) -> Told:
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
        return Told(process)

    return run


def test_it_says_what_would_be_used(doctor: Callable[..., Told], tiny_en_pt: Path) -> None:
    told = doctor("--device", "cpu")
    assert told.code == 0
    assert told.lines[0].startswith(f"Choral {package.__version__} with Python {sys.version_info.major}.")
    assert re.fullmatch(r"torch on cpu in float32|ctranslate2 on cpu in \w+", told.line("engine"))
    assert re.match(r".*, \d+ (of \d+ )?cores$", told.line("processor"))
    assert re.match(r"\d+\.\d+ [GM]B free of \d+\.\d+ [GM]B$", told.line("memory"))
    assert re.match(r"\d+\.\d+[^ ]*, .*", told.line("torch"))
    assert re.match(r"\d+\.\d+[^ ]*, on the processor in .*float32", told.line("ctranslate2"))
    for name in ("numpy", "av", "tiktoken", "rich", "onnxruntime"):
        assert re.match(r"\d+\.\d+[^ ]* \(.*\)$", told.line(name)), name
    assert f"Models in {tiny_en_pt.parent.parent}" in told.lines
    assert told.line("tiny.en") == "75.6 MB"
    for name in ("models", "cache", "temporary files"):
        assert re.match(r"(! )?/.*, (only )?\d+\.\d+ [GM]B free", told.line(name)), name
    assert told.lines[-1] == "Transcribing works here."


def test_several_devices_are_all_named(doctor: Callable[..., Told]) -> None:
    assert doctor("--engine", "torch", "--devices", "cpu,cpu").line("engine") == "torch on cpu, cpu in float32"


@pytest.mark.parametrize(
    ("has_triton", "text", "fix"),
    [(True, "torch on cuda in float16, with Choral's own kernels", None),
     (False, "torch on cuda in float16, and slow without Triton", "pip install triton")],
)  # fmt: skip
def test_a_gpu_without_triton_is_slow(has_triton: bool, text: str, fix: str | None) -> None:
    found = with_kernels(Finding("engine", "torch on cuda in float16"), has_triton=has_triton)
    assert (found.text, found.fix) == (text, fix)
    assert (found.state is State.NOTE) is not has_triton


def test_without_torch_the_other_engine_is_used(doctor: Callable[..., Told]) -> None:
    told = doctor(without=["torch"])
    assert told.code == 0
    assert told.line("torch") == "! not installed (the engine for GPUs) fix: pip install 'choral[torch]'"
    assert re.fullmatch(r"ctranslate2 on (cpu|cuda:0) in \w+", told.line("engine"))


def test_without_any_engine_nothing_works(doctor: Callable[..., Told]) -> None:
    told = doctor(without=["torch", "ctranslate2"])
    assert told.code == 7
    assert (
        told.line("engine")
        == "✗ transcribing needs CTranslate2 or PyTorch: pip install ctranslate2, or 'choral[torch]'"
    )
    assert told.lines[-1] == "Transcribing does not work here: fix what is marked ✗ above."


@pytest.mark.parametrize("name", ["av", "numpy"])
def test_a_package_that_is_needed_and_missing(doctor: Callable[..., Told], name: str) -> None:
    told = doctor(without=["torch", name])
    assert told.code == 7
    assert re.match(rf"✗ not installed \(.*\) fix: pip install '?{name}", told.line(name))


def test_a_broken_engine_is_told_with_its_message_and_the_way_out(doctor: Callable[..., Told]) -> None:
    code = "raise OSError('libcudart.so.99: cannot open shared object file\\nand a page of advice')"
    told = doctor(broken={"torch": code})
    assert told.code == 7
    assert told.line("torch").startswith(
        "! installed, but it cannot be loaded: libcudart.so.99: cannot open shared object"
    )
    assert "advice" not in told.out
    assert told.line("engine") == (
        "✗ torch, which cannot be loaded fix: reinstall it: pip install --force-reinstall torch; "
        "until then, use --engine ctranslate2"
    )


def test_another_engine_than_the_broken_one_works(doctor: Callable[..., Told]) -> None:
    told = doctor("--engine", "ctranslate2", "--device", "cpu", broken={"torch": "import no_such_part_of_torch"})
    assert told.code == 0
    assert "cannot be loaded: No module named 'no_such_part_of_torch'" in told.line("torch")
    assert told.line("engine").startswith("ctranslate2 on cpu in ")


def test_a_broken_voice_detector_is_no_reason_not_to_transcribe(doctor: Callable[..., Told]) -> None:
    told = doctor(without=["torch"], broken={"onnxruntime": "raise ImportError('DLL load failed')"})
    assert told.code == 0
    assert told.line("onnxruntime") == (
        "! installed, but it cannot be loaded: DLL load failed (the voice detector, for --vad and --mode batched) "
        "fix: pip install onnxruntime"
    )


def test_a_new_user_has_no_models_yet(doctor: Callable[..., Told], tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "CHORAL_MODELS": "", "XDG_CACHE_HOME": "", "HF_HOME": "", "HF_HUB_CACHE": ""}
    told = doctor("--device", "cpu", without=["torch"], env=home)
    assert told.code == 0
    assert f"Models in {tmp_path}/.cache/choral/models" in told.lines
    assert told.line("model") == "! the model 'base' is not on this machine: get it with `choral models pull base`"
    assert not (tmp_path / ".cache").exists(), "looking leaves nothing behind"


def test_models_that_cannot_be_fetched(doctor: Callable[..., Told], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {"CHORAL_MODELS": str(tmp_path / "file/models"), "HF_HOME": str(tmp_path / "none")}
    told = doctor("--device", "cpu", without=["torch"], env=env)
    assert told.code == 7
    assert told.line("models") == (
        f"✗ {tmp_path}/file/models cannot be written: Not a directory "
        "fix: set CHORAL_MODELS to a folder that you may write to"
    )


def test_places_that_are_closed_do_not_matter_for_a_model_that_is_here(
    doctor: Callable[..., Told], tiny_en_ct2: Path
) -> None:
    env = {"CHORAL_MODELS": "/proc/models", "XDG_CACHE_HOME": "/proc/cache", "CHORAL_SAMPLES": "/proc/samples"}
    told = doctor("--model", tiny_en_ct2, "--device", "cpu", without=["torch"], env=env)
    assert told.code == 0, told.out
    assert told.line("models").startswith("! /proc/models cannot be written: ")
    assert told.line("cache").startswith("! /proc/cache/choral cannot be written: ")
    assert told.line("model") == f"{tiny_en_ct2}, from {tiny_en_ct2}"
    assert re.search(r"one second of noise in \d+\.\d\d s", told.line("transcribed"))


def test_a_damaged_model_is_told(doctor: Callable[..., Told], tmp_path: Path) -> None:
    (tmp_path / "models/base").mkdir(parents=True)
    told = doctor("--device", "cpu", without=["torch"], env={"CHORAL_MODELS": str(tmp_path / "models")})
    assert told.code == 7
    assert re.match(r"! damaged: .* has no manifest\.json fix: choral models remove base", told.line("base"))
    assert told.line("model").startswith("✗ the model 'base' is damaged: ")
    assert told.lines[-1] == "Transcribing does not work here: fix what is marked ✗ above."


def test_the_proof_shows_the_line_of_the_engine(choral: Run, tiny_en_pt: Path) -> None:
    result = choral("doctor", "--model", tiny_en_pt, "--device", "cpu", "--engine", "torch")
    assert (result.code, result.errors) == (0, "")
    assert re.search(
        r"^    engine +torch on cpu in float32: encoder budget 32,768 frames, at most 21 windows a step; "
        r"\d+ slots of \d+\.\d MB; encoder cache [\d,]+\.\d MB$",
        result.out,
        re.MULTILINE,
    )
    assert re.search(r"^    transcribed +one second of noise in \d+\.\d\d s$", result.out, re.MULTILINE)


def test_a_model_that_does_not_exist(doctor: Callable[..., Told]) -> None:
    told = doctor("--model", "bass", "--device", "cpu", without=["torch"])
    assert told.code == 7
    assert "✗ model" in told.out
    assert "there is no model called 'bass'. Did you mean base" in told.out


def test_a_device_that_is_not_there(doctor: Callable[..., Told]) -> None:
    told = doctor("--device", "cuda", "--engine", "ctranslate2", without=["torch"], env={"CUDA_VISIBLE_DEVICES": ""})
    assert told.code == 7
    assert told.line("engine").startswith("✗ device cuda: CTranslate2 finds no CUDA device here")


def test_a_gpu_that_the_engines_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_gpus_are_named_with_their_memory_and_trouble_is_noted() -> None:
    whole = hardware_section(Driver("12.4", (Gpu("NVIDIA Something", 8_000_000_000),))).findings[-1]
    assert (whole.text, whole.state) == ("NVIDIA Something, 8.00 GB, driver for CUDA 12.4", State.OK)
    hidden = hardware_section(Driver("12.4", problem="the driver shows no GPU")).findings[-1]
    assert (hidden.text, hidden.state) == ("the driver shows no GPU", State.NOTE)


def test_memory_is_what_this_process_may_take() -> None:
    known = free_and_total_bytes()
    if known is None:
        pytest.skip("this system does not say")
    free_bytes, total_bytes = known
    assert 0 < free_bytes < total_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_only_the_first_line_of_an_error_is_shown() -> None:
    assert first_line(ValueError("\n  what it is\nwhat to do")) == "what it is"
    assert first_line(ValueError()) == "ValueError"
