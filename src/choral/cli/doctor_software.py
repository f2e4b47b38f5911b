"""Software that transcribing depends on: packages, the two engines, the installed models, and what would be used.

Every package is imported: one that is installed but broken is a finding with its own message.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from choral.cli.doctor_findings import Finding, Section, State, first_line
from choral.cli.doctor_hardware import Driver
from choral.common.sizes import format_size
from choral.config import EngineSettings
from choral.errors import MissingDependency, ModelError, ModelNotFound, StorageError, UsageError
from choral.model.store import InstalledModel, ModelStore, default_model

# What a package that is damaged, or built for other versions, raises when it is imported.
IMPORT_ERRORS = (ImportError, OSError, RuntimeError, ValueError, AttributeError, TypeError, SystemError)
NOT_INSTALLED = "not installed"
CUBLAS = "libcublas.so.12"  # CTranslate2 loads it by this name when it first uses a GPU


@dataclass(frozen=True)
class Package:
    name: str
    purpose: str
    install: str
    if_missing: State = State.PROBLEM


ENGINES = (
    Package("ctranslate2", "an engine, the faster for one file", "pip install ctranslate2", State.NOTE),
    Package("torch", "an engine, the faster for many callers and on GPUs", "pip install 'choral[torch]'", State.NOTE),
)
PACKAGES = (
    Package("numpy", "arithmetic", "pip install 'numpy>=2'"),
    Package("av", "reads audio and video", "pip install av"),
    Package("tiktoken", "splits text into tokens", "pip install tiktoken"),
    Package("rich", "draws progress bars", "pip install rich"),
    Package("onnxruntime", "the voice detector, for --vad and --mode batched", "pip install onnxruntime", State.NOTE),
)


@dataclass(frozen=True)
class ImportedPackage:
    package: Package
    module: ModuleType | None
    problem: str | None = None  # why it cannot be used

    @property
    def finding(self) -> Finding:
        package = self.package
        if self.problem is not None:
            return Finding(package.name, f"{self.problem} ({package.purpose})", package.if_missing, package.install)
        return Finding(package.name, f"{self.version} ({package.purpose})")

    @property
    def version(self) -> str:
        try:
            return importlib.metadata.version(self.package.name)
        except importlib.metadata.PackageNotFoundError:  # copied there without an installer
            return str(getattr(self.module, "__version__", "of an unknown version"))


def import_package(package: Package) -> ImportedPackage:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime would write a file and send usage data
    try:
        with warnings.catch_warnings(), _silent_excepthook():
            warnings.simplefilter("ignore")
            return ImportedPackage(package, importlib.import_module(package.name))
    except ModuleNotFoundError as error:
        if error.name == package.name:
            return ImportedPackage(package, None, NOT_INSTALLED)
        return ImportedPackage(package, None, f"installed, but it cannot be loaded: {first_line(error)}")
    except IMPORT_ERRORS as error:
        return ImportedPackage(package, None, f"installed, but it cannot be loaded: {first_line(error)}")


@contextmanager
def _silent_excepthook() -> Iterator[None]:
    """Some C extensions call the exception hook, which prints a traceback, before they raise."""
    hook, sys.excepthook = sys.excepthook, lambda *_: None
    try:
        yield
    finally:
        sys.excepthook = hook


def packages_section(packages: Mapping[str, ImportedPackage]) -> Section:
    return Section("Packages", tuple(package.finding for package in packages.values()))


def engines_section(engines: Mapping[str, ImportedPackage], driver: Driver) -> Section:
    describe = {"torch": _torch, "ctranslate2": _ctranslate2}
    findings = [
        engine.finding if engine.module is None else describe[name](engine, engine.module, driver)
        for name, engine in engines.items()
    ]
    return Section("Engines", tuple(findings))


def _torch(engine: ImportedPackage, torch: Any, driver: Driver) -> Finding:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        has_cuda = torch.cuda.is_available()
    if has_cuda:
        gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        names = ", ".join(f"{gpu.name} with {format_size(gpu.total_memory)}" for gpu in gpus)
        return Finding("torch", f"{engine.version}, with CUDA {torch.version.cuda} on {names}")
    if not driver.gpus:
        return Finding("torch", f"{engine.version}, on the processor")
    if torch.version.cuda is None:
        text = f"{engine.version} is built without CUDA: it cannot use the GPU"
        return Finding("torch", text, State.NOTE, "install a build with CUDA: pytorch.org/get-started has the command")
    reason = first_line(caught[0].message) if caught and isinstance(caught[0].message, Warning) else "no reason given"
    text = f"{engine.version} is built for CUDA {torch.version.cuda} and finds no GPU: {reason}"
    fix = f"update the driver (it supports CUDA {driver.cuda_version}), or install a build of torch for that version"
    return Finding("torch", text, State.NOTE, fix)


def _ctranslate2(engine: ImportedPackage, ctranslate2: Any, driver: Driver) -> Finding:
    text = f"{engine.version}, on the processor in {_compute_types(ctranslate2, 'cpu')}"
    if not driver.gpus:
        return Finding("ctranslate2", text)
    if not ctranslate2.get_cuda_device_count():
        return Finding("ctranslate2", f"{text}; it finds no GPU", State.NOTE, "update the driver, or use torch")
    problem = _library_problem(CUBLAS)
    if problem is not None:
        fix = "pip install nvidia-cublas-cu12, and put the folder of that library into LD_LIBRARY_PATH"
        return Finding("ctranslate2", f"{text}; not on the GPU: {problem}", State.NOTE, fix)
    try:
        return Finding("ctranslate2", f"{text}; on the GPU in {_compute_types(ctranslate2, 'cuda')}")
    except RuntimeError as error:
        return Finding("ctranslate2", f"{text}; not on the GPU: {first_line(error)}", State.NOTE)


def _compute_types(ctranslate2: Any, device: str) -> str:
    return ", ".join(sorted(ctranslate2.get_supported_compute_types(device)))


def _library_problem(library: str) -> str | None:
    if sys.platform != "linux":
        return None  # elsewhere it comes with the package
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return first_line(error)
    return None


def models_section() -> Section:
    try:
        store = ModelStore()
        findings = [_installed(model) for model in store.list()]
    except StorageError as error:
        return Section("Models", (Finding("folder", str(error), State.PROBLEM),))
    if not findings:
        findings = [Finding("none yet", "a model is fetched when it is first used")]
    return Section(f"Models in {store.root}", tuple(findings))


def _installed(model: InstalledModel) -> Finding:
    if model.damage is None:
        return Finding(model.name, format_size(model.size_bytes))
    return Finding(model.name, f"damaged: {model.damage}", State.NOTE, f"choral models remove {model.name}")


def model_finding(name: str) -> Finding:
    """The model that would be loaded; OK only where nothing has to be downloaded."""
    try:
        return Finding("model", f"{name}, from {ModelStore().path(name)}")
    except ModelNotFound as error:
        return Finding("model", str(error), State.NOTE)
    except (ModelError, StorageError) as error:
        return Finding("model", str(error), State.PROBLEM)


def engine_finding(settings: EngineSettings, engines: Mapping[str, ImportedPackage]) -> tuple[Finding, str]:
    """The engine, device and precision that these settings select here, and the default model that goes with them."""
    from choral.engine.engine_plan import choose_engine, plan_engine

    subject = "engine" if settings.optimize_for == "latency" else "many callers"
    try:
        name, _ = choose_engine(settings)
        if name in engines and engines[name].module is None and engines[name].problem != NOT_INSTALLED:
            return _broken_engine(subject, name, engines), default_model(cuda=False)
        plan = plan_engine(settings)
    except (MissingDependency, UsageError) as error:
        return Finding(subject, str(error), State.PROBLEM), default_model(cuda=False)
    finding = Finding(subject, str(plan))
    if plan.is_torch_on_gpu:
        finding = with_kernels(finding, has_triton=importlib.util.find_spec("triton") is not None)
    return finding, default_model(cuda=plan.is_torch_on_gpu)


def runtime_finding(engine: Finding) -> Finding:
    """Where several files are decoded and their texts assembled."""
    from choral.serving.runtime_plan import plan_runtime

    return Finding("many files", str(plan_runtime("cuda" if "cuda" in engine.text else "cpu")))


def service_finding(engine: Finding) -> Finding:
    """Where a server runs requests, live sessions, and its engine."""
    from choral.common.processor import n_usable_cores
    from choral.serving.runtime_plan import (
        MAX_PROCESSES,
        n_session_processes,
        needs_engine_process,
        plan_service,
        session_place,
    )

    is_on_gpu = "torch" in engine.text and "cuda" in engine.text
    plan = plan_service(n_usable_cores(), has_engine_process=needs_engine_process(is_on_gpu=is_on_gpu))
    n_processes = n_session_processes("cuda" if is_on_gpu else "cpu", -1, MAX_PROCESSES)
    return Finding("server", f"{plan}; {session_place(n_processes)}")


def with_kernels(finding: Finding, *, has_triton: bool) -> Finding:
    """On a GPU Choral is fast with its own kernels, which Triton compiles."""
    if has_triton:
        return replace(finding, text=f"{finding.text}, with Choral's own kernels")
    return replace(finding, text=f"{finding.text}, and slow without Triton", state=State.NOTE, fix="pip install triton")


def _broken_engine(subject: str, name: str, engines: Mapping[str, ImportedPackage]) -> Finding:
    fix = f"reinstall it: pip install --force-reinstall {name}"
    others = [other for other, engine in engines.items() if engine.module is not None]
    if others:
        fix += f"; until then, use --engine {others[0]}"
    return Finding(subject, f"{name}, which cannot be loaded", State.PROBLEM, fix)
