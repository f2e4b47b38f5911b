"""Settings of the engine: frozen, few, and checked; what is measured at start lives in the object that measured it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from choral.checks import check_fields
from choral.errors import UsageError

ComputeType = Literal["auto", "float32", "float16", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    device: str = "auto"  # auto, cpu, cuda or cuda:N
    compute_type: ComputeType = "auto"  # auto: float32 on a CPU, float16 on a GPU
    threads: int = 0  # CPU threads; 0: as many as the machine has cores

    def __post_init__(self) -> None:
        check_fields(self)
        kind, _, index = self.device.partition(":")
        if kind not in ("auto", "cpu", "cuda") or (index and (kind != "cuda" or not index.isdecimal())):
            raise UsageError(f"device is {self.device!r}; it must be auto, cpu, cuda or cuda:N")
        if not 0 <= self.threads <= 4096:
            raise UsageError(f"threads is {self.threads!r}; it must be 0 (all cores) or a count of threads")
