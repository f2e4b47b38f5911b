"""Engine settings: frozen and validated. Values measured at start-up live in the object that measured them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from choral.errors import UsageError
from choral.validation import check_fields, option

EngineName = Literal["auto", "torch", "ctranslate2"]
OptimizeFor = Literal["latency", "throughput"]
ComputeType = Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8"]
MAX_QUEUE_LIMIT = 2**31


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings of one engine; invalid values raise `UsageError` on construction."""

    engine: EngineName = option("auto", "auto: the fastest for this machine and task; `choral doctor` says which")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    devices: str = option("", 'several GPUs with an engine on each, for example "0,1"; overrides device')
    compute_type: ComputeType = option("auto", "auto: float16 on a GPU, int8 on a CPU (torch: float32 without VNNI)")
    threads: int = option(0, "CPU threads; 0: one per core this process may use", within=(0, 4096))
    encoder_budget: int = option(32_768, "frames per encoder step; a window has 1,500", within=(1, 2**31))
    slots: int = option(0, "slots in the decoder's batch; 0: chosen for the device and its memory", within=(0, 4096))
    cache_bytes: int = option(-1, "size of the encoder cache; -1: chosen for the memory", within=(-1, 2**50))
    memory_share: float = option(1.0, "share of the free memory to plan slots and cache for", within=(0.001, 1))
    queue_limit: int = option(4096, "windows that may wait before new callers are refused", within=(1, MAX_QUEUE_LIMIT))
    optimize_for: OptimizeFor = option("latency", "latency: one file at a time; throughput: many windows at a time")
    batch_invariant: bool = option(True, "on a GPU, the same bits alone and in a crowd; one window alone takes longer")
    draft: str = option("", "a model that proposes tokens, on a GPU; none: no; empty: a distilled one, if installed")
    draft_tokens: int = option(4, "tokens that the draft model proposes at a time", within=(1, 8))
    warm_up: bool | None = option(None, "run the largest step before the first request; None: only on a GPU")

    def __post_init__(self) -> None:
        check_fields(self)
        if not is_device(self.device):
            raise UsageError(f"device is {self.device!r}; it must be auto, cpu, cuda or cuda:N")
        if self.devices and not all(map(is_device, self.device_names)):
            raise UsageError(f"devices is {self.devices!r}; it must be GPU numbers separated by commas, as in 0,1")

    @property
    def device_names(self) -> list[str]:
        """The names in `devices`; empty when only `device` is set."""
        names = [name.strip() for name in self.devices.split(",")] if self.devices else []
        return [f"cuda:{name}" if name.isdecimal() else name for name in names]


def is_device(name: str) -> bool:
    kind, _, index = name.partition(":")
    return kind in ("auto", "cpu", "cuda") and (not index or (kind == "cuda" and index.isdecimal()))
