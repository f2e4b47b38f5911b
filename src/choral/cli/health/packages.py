"""The packages that Choral stands on: which are there, which versions, and what the two engines can do here.

Every package is really loaded: one that is installed but broken is a finding with its own message.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from choral.cli.health.findings import Finding, Section, State, first_line
from choral.cli.health.gpus import Driver
from choral.cli.progress import size

# What a package that is damaged, or built for other versions, raises when it is loaded.
LOADING_ERRORS = (ImportError, OSError, RuntimeError, ValueError, AttributeError, TypeError, SystemError)
CUBLAS = "libcublas.so.12"  # CTranslate2 looks for it by this name when it first works on a GPU


@dataclass(frozen=True)
class Package:
    name: str
    purpose: str
    install: str
    if_missing: State = State.PROBLEM


ENGINES = (
    Package("ctranslate2", "the engine for processors", "pip install ctranslate2", State.NOTE),
    Package("torch", "the engine for GPUs", "pip install 'choral[torch]'", State.NOTE),
)
PACKAGES = (
    Package("numpy", "arithmetic", "pip install 'numpy>=2'"),
    Package("av", "reads audio and video", "pip install av"),
    Package("tiktoken", "splits text into tokens", "pip install tiktoken"),
    Package("rich", "draws progress bars", "pip install rich"),
    Package("onnxruntime", "the voice detector, for --vad and --mode batched", "pip install onnxruntime", State.NOTE),
)


@dataclass(frozen=True)
class Loaded:
    """A package that was tried."""

    package: Package
    module: ModuleType | None
    trouble: str | None = None  # why it cannot be used

    @property
    def finding(self) -> Finding:
        package = self.package
        if self.trouble is not None:
            return Finding(package.name, f"{self.trouble} ({package.purpose})", package.if_missing, package.install)
        return Finding(package.name, f"{self.version} ({package.purpose})")

    @property
    def version(self) -> str:
        try:
            return importlib.metadata.version(self.package.name)
        except importlib.metadata.PackageNotFoundError:  # it was put there without an installer
            return str(getattr(self.module, "__version__", "of an unknown version"))


def load(package: Package) -> Loaded:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime would leave a file and call home
    try:
        with warnings.catch_warnings(), _nothing_printed():
            warnings.simplefilter("ignore")
            return Loaded(package, importlib.import_module(package.name))
    except ModuleNotFoundError as error:
        if error.name == package.name:
            return Loaded(package, None, "not installed")
        return Loaded(package, None, f"installed, but it cannot be loaded: {first_line(error)}")
    except LOADING_ERRORS as error:
        return Loaded(package, None, f"installed, but it cannot be loaded: {first_line(error)}")


@contextmanager
def _nothing_printed() -> Iterator[None]:
    """Some packages, written in C, print an error as Python would print its last before they raise it."""
    hook, sys.excepthook = sys.excepthook, lambda *_: None
    try:
        yield
    finally:
        sys.excepthook = hook


def packages_section(packages: dict[str, Loaded]) -> Section:
    return Section("Packages", tuple(loaded.finding for loaded in packages.values()))


def engines_section(engines: dict[str, Loaded], driver: Driver) -> Section:
    describe = {"torch": _torch, "ctranslate2": _ctranslate2}
    findings = [
        loaded.finding if loaded.module is None else describe[name](loaded, loaded.module, driver)
        for name, loaded in engines.items()
    ]
    return Section("Engines", tuple(findings))


def _torch(loaded: Loaded, torch: Any, driver: Driver) -> Finding:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        has_cuda = torch.cuda.is_available()
    if has_cuda:
        gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        shown = ", ".join(f"{gpu.name} with {size(gpu.total_memory)}" for gpu in gpus)
        return Finding("torch", f"{loaded.version}, with CUDA {torch.version.cuda} on {shown}")
    if not driver.gpus:
        return Finding("torch", f"{loaded.version}, on the processor")
    if torch.version.cuda is None:
        text = f"{loaded.version} is built without CUDA: it cannot use the GPU"
        return Finding("torch", text, State.NOTE, "install a build with CUDA: pytorch.org/get-started has the command")
    reason = first_line(told[0].message) if told and isinstance(told[0].message, Warning) else "it does not say why"
    text = f"{loaded.version} is built for CUDA {torch.version.cuda} and finds no GPU: {reason}"
    mend = f"update the driver (it can do CUDA {driver.cuda_version}), or install a build of torch for that version"
    return Finding("torch", text, State.NOTE, mend)


def _ctranslate2(loaded: Loaded, ctranslate2: Any, driver: Driver) -> Finding:
    text = f"{loaded.version}, on the processor in {_types(ctranslate2, 'cpu')}"
    if not driver.gpus:
        return Finding("ctranslate2", text)
    if not ctranslate2.get_cuda_device_count():
        return Finding("ctranslate2", f"{text}; it finds no GPU", State.NOTE, "update the driver, or use torch")
    missing = _why_not_loaded(CUBLAS)
    if missing is not None:
        mend = "pip install nvidia-cublas-cu12, and put the folder of that library into LD_LIBRARY_PATH"
        return Finding("ctranslate2", f"{text}; not on the GPU: {missing}", State.NOTE, mend)
    try:
        return Finding("ctranslate2", f"{text}; on the GPU in {_types(ctranslate2, 'cuda')}")
    except RuntimeError as error:
        return Finding("ctranslate2", f"{text}; not on the GPU: {first_line(error)}", State.NOTE)


def _types(ctranslate2: Any, device: str) -> str:
    return ", ".join(sorted(ctranslate2.get_supported_compute_types(device)))


def _why_not_loaded(library: str) -> str | None:
    if sys.platform != "linux":
        return None  # elsewhere it comes with the package
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return first_line(error)
    return None
