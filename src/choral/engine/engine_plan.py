"""Chooses engine, device, precision and threads for this machine and workload, and says why. The only place that does.

A setting that names one is kept. The rules come from measurements (docs/engine.md): on a CPU, one file is fastest in
CTranslate2 in int8, which costs no accuracy; the windows of many callers batch best in torch, where they join and leave
at every step, if it has int8 too. torch, which takes seconds to import, is only imported where it may be used.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from choral.common.processor import default_threads, has_vnni
from choral.config import EngineSettings, OptimizeFor
from choral.errors import MissingDependency
from choral.options import TranscribeOptions

CTRANSLATE2_CPU_SLOTS = 8  # windows of one micro-batch: all wait for the longest
_CUDA_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_AMD_DRIVER = Path("/dev/kfd")


@dataclass(frozen=True)
class EnginePlan:
    engine: str
    device: str  # several are separated by commas
    compute_type: str
    threads: int  # of the CPU
    reason: str  # for the engine

    @property
    def is_torch_on_gpu(self) -> bool:
        return self.engine == "torch" and "cuda" in self.device

    def __str__(self) -> str:
        threads = "" if "cuda" in self.device else f", threads: {self.threads}"
        return f"{self.engine} on {self.device} in {self.compute_type}{threads}; {self.reason}"


def optimize_for(n_inputs: int, options: TranscribeOptions) -> OptimizeFor:
    """What a program with this many inputs needs. Several files are for torch where it is fast: with VNNI."""
    # CTranslate2 cannot return log-probabilities for beams, and decodes a window several times to boost hotwords.
    is_for_torch = (options.beam_size > 1 and options.token_logprobs) or bool(options.hotword_terms)
    is_wide = is_for_torch or max(options.beam_size, options.best_of) > CTRANSLATE2_CPU_SLOTS
    return "latency" if (n_inputs == 1 or not has_vnni()) and not is_wide else "throughput"


def plan_engine(settings: EngineSettings) -> EnginePlan:
    engine, reason = choose_engine(settings)
    require_installed(engine)
    device, compute_type = _torch_choice(settings) if engine == "torch" else _ctranslate2_choice(settings)
    return EnginePlan(engine, device, compute_type, settings.threads or default_threads(), reason)


def choose_engine(settings: EngineSettings) -> tuple[str, str]:
    """The engine and the reason for it."""
    if settings.engine != "auto":
        return settings.engine, "as requested"
    if not is_installed("torch"):
        return "ctranslate2", "PyTorch is not installed"
    if not is_installed("ctranslate2"):
        return "torch", "CTranslate2 is not installed"
    if _wants_gpu(settings):
        return "torch", "it has kernels of its own for GPUs"
    if settings.compute_type not in ("auto", "int8"):
        return "torch", f"it is the reference in {settings.compute_type}"
    if settings.optimize_for == "latency":
        return "ctranslate2", "for one file it is the fastest on a CPU, and for any number without VNNI instructions"
    if settings.compute_type == "int8" and not has_vnni():
        return "ctranslate2", "torch has no int8 on this CPU: it needs VNNI instructions"
    return "torch", "many windows join and leave its batches at every step"


def is_installed(engine: str) -> bool:
    return importlib.util.find_spec(engine) is not None


def require_installed(engine: str) -> None:
    if is_installed(engine):
        return
    if engine == "torch":
        raise MissingDependency("this engine needs PyTorch: pip install 'choral[torch]'")
    raise MissingDependency("transcribing needs CTranslate2 or PyTorch: pip install ctranslate2, or 'choral[torch]'")


def _wants_gpu(settings: EngineSettings) -> bool:
    names = settings.device_names or [settings.device]
    if "auto" not in names:
        return any(name.startswith("cuda") for name in names)
    return _may_have_gpu() and _torch_finds_gpu()


def _may_have_gpu() -> bool:
    """Whether it is worth importing torch to ask."""
    if _AMD_DRIVER.exists():
        return True
    try:
        library = ctypes.CDLL(_CUDA_LIBRARY)
    except OSError:
        return False
    n_gpus = ctypes.c_int()
    return library.cuInit(0) == 0 and library.cuDeviceGetCount(ctypes.byref(n_gpus)) == 0 and n_gpus.value > 0


def _torch_finds_gpu() -> bool:
    with import_errors("PyTorch"):
        import torch
    return torch.cuda.is_available()


def _torch_choice(settings: EngineSettings) -> tuple[str, str]:
    with import_errors("PyTorch"):
        from choral.engine.torch_device import pick_compute_type, pick_device
    devices = [pick_device(name) for name in settings.device_names or [settings.device]]
    return ", ".join(map(str, devices)), pick_compute_type(settings.compute_type, devices[0])


def _ctranslate2_choice(settings: EngineSettings) -> tuple[str, str]:
    with import_errors("CTranslate2"):
        from choral.engine.ct2_device import pick_compute_type, pick_device
    devices = [pick_device(name) for name in settings.device_names or [settings.device]]
    names = [kind if kind == "cpu" else f"{kind}:{index}" for kind, index in devices]
    return ", ".join(names), pick_compute_type(settings.compute_type, devices[0][0])


@contextmanager
def import_errors(package: str) -> Iterator[None]:
    """Raises what a damaged package raises as a `MissingDependency`."""
    try:
        yield
    except (ImportError, OSError) as error:
        raise MissingDependency(f"{package} is installed but does not load ({error}): see `choral doctor`") from error
