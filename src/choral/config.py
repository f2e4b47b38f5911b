"""Settings of the engine: frozen, few, and checked; what is measured at start lives in the object that measured it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from choral.checks import check_fields
from choral.errors import UsageError

EngineName = Literal["auto", "torch", "ctranslate2"]
ComputeType = Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    engine: EngineName = "auto"  # auto: torch where it is installed, CTranslate2 otherwise
    device: str = "auto"  # auto, cpu, cuda or cuda:N
    devices: str = ""  # several, with an engine on each: "0,1" for the first two GPUs; device does not count then
    compute_type: ComputeType = "auto"  # auto: float32 on a CPU, float16 on a GPU
    threads: int = 0  # CPU threads; 0: as many as the machine has cores
    encoder_budget: int = 32_768  # frames that one encoder step may take; a window has 1,500
    slots: int = 0  # places in the decoder's batch; 0: as many as suit the device and its memory
    cache_bytes: int = -1  # encoder results that are kept; -1: as many as suit the memory
    queue_limit: int = 4096  # windows that may wait before new callers are refused
    warm_up: bool | None = None  # try the largest step before the first request; None: on a GPU

    def __post_init__(self) -> None:
        check_fields(self)
        if not is_device(self.device):
            raise UsageError(f"device is {self.device!r}; it must be auto, cpu, cuda or cuda:N")
        if self.devices and not all(map(is_device, self.device_names)):
            raise UsageError(f"devices is {self.devices!r}; it must be numbers of GPUs with commas between, as in 0,1")
        if not 0 <= self.threads <= 4096:
            raise UsageError(f"threads is {self.threads!r}; it must be 0 (all cores) or a count of threads")
        if not 0 <= self.slots <= 4096:
            raise UsageError(f"slots is {self.slots!r}; it must be 0 (what suits the device) or a count of places")
        if self.cache_bytes < -1:
            raise UsageError(f"cache_bytes is {self.cache_bytes!r}; it must be -1 (what suits the memory) or a size")
        for name in ("encoder_budget", "queue_limit"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be a whole number from 1 up")

    @property
    def device_names(self) -> list[str]:
        """Of several devices; none where there is only `device`."""
        names = [name.strip() for name in self.devices.split(",")] if self.devices else []
        return [f"cuda:{name}" if name.isdecimal() else name for name in names]


def is_device(name: str) -> bool:
    kind, _, index = name.partition(":")
    return kind in ("auto", "cpu", "cuda") and (not index or (kind == "cuda" and index.isdecimal()))
