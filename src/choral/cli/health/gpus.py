"""What the NVIDIA driver says about this machine's GPUs, asked without torch, which may be unable to use them."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY_CLASS = "0x10de", "0x03"
_NAME_BYTES = 256


@dataclass(frozen=True)
class Gpu:
    name: str
    total_bytes: int


@dataclass(frozen=True)
class Driver:
    cuda_version: str | None  # the newest that this driver can do; None: there is no driver
    gpus: tuple[Gpu, ...] = ()
    trouble: str | None = None  # why there is a GPU, or seems to be one, that nobody can use


def ask_driver() -> Driver:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return Driver(None, trouble=_why_no_driver(error))
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    shown = f"{version.value // 1000}.{version.value % 1000 // 10}"
    code = library.cuInit(0)
    if code:
        return Driver(shown, trouble=_why_no_gpu(code))
    return Driver(shown, _gpus(library))


def _gpus(library: ctypes.CDLL) -> tuple[Gpu, ...]:
    n_gpus = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(n_gpus))
    found = []
    for index in range(n_gpus.value):
        name, total_bytes = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_size_t()
        library.cuDeviceGetName(name, _NAME_BYTES, index)
        library.cuDeviceTotalMem_v2(ctypes.byref(total_bytes), index)
        found.append(Gpu(name.value.decode("utf-8", "replace"), total_bytes.value))
    return tuple(found)


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
    return f"the driver is there, but gives no GPU (its error {code}): `nvidia-smi` may say why"


def _is_nvidia_gpu(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
    except OSError:
        return False
    return vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY_CLASS)
