"""Hardware that transcribing depends on: processor, memory, NVIDIA GPUs and disks.

The NVIDIA driver is queried without torch, which may be unable to use the GPUs that the driver reports.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from choral.bench.report import this_machine
from choral.cli.doctor_findings import Finding, Section, State, first_line
from choral.common.processor import n_usable_cores
from choral.common.sizes import format_size
from choral.errors import StorageError
from choral.model.store import ModelStore
from choral.storage import cache_root

MIN_FREE_MEMORY_BYTES = 1_000_000_000  # enough for a small model and its working memory
MIN_FREE_DISK_BYTES = 1_000_000_000  # below this, a model or a long recording may not fit
_CGROUP = Path("/sys/fs/cgroup")
_CUDA_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"
_MAX_NAME_BYTES = 256


@dataclass(frozen=True)
class Gpu:
    name: str
    total_bytes: int


@dataclass(frozen=True)
class Driver:
    cuda_version: str | None  # the newest that this driver supports; None: no driver
    gpus: tuple[Gpu, ...] = ()
    problem: str | None = None  # why a GPU that seems to be there cannot be used


def hardware_section(driver: Driver) -> Section:
    return Section("Machine", (_processor(), _memory(), *_gpu_findings(driver)))


def _processor() -> Finding:
    machine = this_machine()
    n_usable = n_usable_cores()
    cores = f"{machine.n_cpus} cores" if n_usable == machine.n_cpus else f"{n_usable} of {machine.n_cpus} cores"
    return Finding("processor", f"{machine.cpu}, {cores}")


def _memory() -> Finding:
    free_and_total = free_and_total_bytes()
    if free_and_total is None:
        return Finding("memory", "unknown: this system does not report it")
    free_bytes, total_bytes = free_and_total
    text = f"{format_size(free_bytes)} free of {format_size(total_bytes)}"
    if free_bytes >= MIN_FREE_MEMORY_BYTES:
        return Finding("memory", text)
    return Finding("memory", text, State.NOTE, "close other programs, or use a small model: --model tiny")


def free_and_total_bytes() -> tuple[int, int] | None:
    """Memory that this process can still allocate, and all there is, within the limit of a container."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
    free_bytes, total_bytes = kilobytes["MemAvailable"] * 1024, kilobytes["MemTotal"] * 1024
    with contextlib.suppress(OSError, ValueError):  # no limit for this process
        limit_bytes = int((_CGROUP / "memory.max").read_text())
        used_bytes = int((_CGROUP / "memory.current").read_text())
        return min(free_bytes, max(0, limit_bytes - used_bytes)), min(total_bytes, limit_bytes)
    return free_bytes, total_bytes


def _gpu_findings(driver: Driver) -> Iterator[Finding]:
    for gpu in driver.gpus:
        yield Finding("GPU", f"{gpu.name}, {format_size(gpu.total_bytes)}, driver for CUDA {driver.cuda_version}")
    if driver.problem is not None:
        yield Finding("GPU", driver.problem, State.NOTE)
    elif not driver.gpus:
        yield Finding("GPU", "none from NVIDIA: the processor is used")


def query_driver() -> Driver:
    try:
        library = ctypes.CDLL(_CUDA_LIBRARY)
    except OSError as error:
        return Driver(None, problem=_why_no_driver(error))
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    cuda_version = f"{version.value // 1000}.{version.value % 1000 // 10}"
    code = library.cuInit(0)
    if code:
        return Driver(cuda_version, problem=_why_no_gpu(code))
    return Driver(cuda_version, _list_gpus(library))


def _list_gpus(library: ctypes.CDLL) -> tuple[Gpu, ...]:
    n_gpus = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(n_gpus))
    gpus = []
    for index in range(n_gpus.value):
        name, total_bytes = ctypes.create_string_buffer(_MAX_NAME_BYTES), ctypes.c_size_t()
        library.cuDeviceGetName(name, _MAX_NAME_BYTES, index)
        library.cuDeviceTotalMem_v2(ctypes.byref(total_bytes), index)
        gpus.append(Gpu(name.value.decode("utf-8", "replace"), total_bytes.value))
    return tuple(gpus)


def _why_no_driver(error: OSError) -> str | None:
    if Path("/proc/driver/nvidia/version").exists():
        return f"the NVIDIA driver runs, but its library cannot be loaded ({error}); in a container, give it the GPUs"
    if any(map(_is_nvidia_gpu, _PCI_DEVICES.glob("*"))):
        return "there is an NVIDIA card, but no driver for it: install NVIDIA's driver"
    return None


def _why_no_gpu(code: int) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return f"the driver shows no GPU, because CUDA_VISIBLE_DEVICES is {visible!r}"
    return f"the driver is installed, but finds no GPU (error {code}): `nvidia-smi` may say why"


def _is_nvidia_gpu(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
    except OSError:
        return False
    return vendor.strip() == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS)


def disk_section(*, needs_download: bool) -> Section:
    models_state = State.PROBLEM if needs_download else State.NOTE
    models_fix = "set CHORAL_MODELS to a folder that you may write to"
    temporary_fix = "set TMPDIR to a folder that you may write to: long recordings are kept there during transcription"
    return Section(
        "Disk",
        (
            _folder("models", lambda: ModelStore().root, models_state, models_fix),
            _folder("cache", cache_root, State.NOTE, "give yourself permission to write there"),
            _folder("temporary files", lambda: Path(tempfile.gettempdir()), State.NOTE, temporary_fix),
        ),
    )


def _folder(subject: str, find: Callable[[], Path], if_closed: State, fix: str) -> Finding:
    """Whether the folder can be written, tested by creating an unnamed file in it or its nearest parent."""
    try:
        folder = find()
    except (StorageError, FileNotFoundError) as error:
        return Finding(subject, first_line(error), if_closed, fix)
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
        free_bytes = shutil.disk_usage(existing).free
    except OSError as error:
        return Finding(subject, f"{folder} cannot be written: {error.strerror or error}", if_closed, fix)
    if free_bytes < MIN_FREE_DISK_BYTES:
        return Finding(subject, f"{folder}, only {format_size(free_bytes)} free", State.NOTE, "free space on that disk")
    return Finding(subject, f"{folder}, {format_size(free_bytes)} free")
