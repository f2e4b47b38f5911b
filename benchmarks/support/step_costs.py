"""How long the steps of an engine take on a GPU, from what `choral bench gpu` measured."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choral.errors import UsageError

PREFILL_MS = {"large-v3": 0.45, "large-v3-turbo": 0.06}  # projecting the cross-attention K/V of a window
MAX_SLOTS = {"large-v3 bfloat16": 320}  # as many as fit the memory of an H200; 512 otherwise
DEFAULT_SLOTS = 512
FEW_ROWS = 2


@dataclass(frozen=True)
class StepTimes:
    """Of one model in one precision. Between measured numbers of rows, and beyond, times are linear."""

    name: str
    encode_ms: float  # a window, in a batch of 16
    decode_ms: tuple[tuple[int, float], ...]  # rows, and the time of a step of them
    n_slots: int
    measured: dict[str, float]  # what the same run reached: windows_per_s, and requests_per_s of 10 and 50 callers

    def encode_s(self, n_windows: int) -> float:
        return n_windows * self.encode_ms / 1e3

    def decode_s(self, n_rows: int) -> float:
        """One or two rows have kernels of their own, so that their time says nothing of three."""
        if n_rows <= FEW_ROWS:
            return self.decode_ms[0][1] / 1e3
        points = self.decode_ms[1:] if len(self.decode_ms) > 2 else self.decode_ms
        upper = next((i for i, (rows, _) in enumerate(points) if rows >= n_rows), len(points) - 1)
        (rows_a, ms_a), (rows_b, ms_b) = points[max(0, upper - 1)], points[max(1, upper)]
        return (ms_a + (ms_b - ms_a) * (n_rows - rows_a) / (rows_b - rows_a)) / 1e3

    def prefill_s(self, n_windows: int) -> float:
        return self.decode_s(n_windows) + n_windows * PREFILL_MS[self.name.split()[0]] / 1e3


# docs/gpu.md: one H200, commit 89fe837. A step of one row of turbo is a hundredth of one window without its encode;
# its step of 64 rows was not published.
H200 = {
    "large-v3 bfloat16": StepTimes(
        "large-v3 bfloat16", 4.26, ((1, 0.94), (64, 5.9), (256, 17.6)), 320, {"windows": 82, "10": 79, "50": 115}
    ),
    "large-v3 fp8": StepTimes(
        "large-v3 fp8", 3.47, ((1, 1.09), (64, 4.3), (256, 10.9)), 512, {"windows": 123, "10": 92, "50": 137}
    ),
    "large-v3-turbo bfloat16": StepTimes(
        "large-v3-turbo bfloat16", 4.26, ((1, 0.19), (256, 2.3)), 512, {"windows": 184, "10": 151, "50": 187}
    ),
    "large-v3-turbo fp8": StepTimes(
        "large-v3-turbo fp8", 3.47, ((1, 0.21), (256, 1.4)), 512, {"windows": 222, "10": 171, "50": 211}
    ),
}


def read_step_times(path: Path) -> dict[str, StepTimes]:
    """From what `choral bench gpu` printed: its last line is JSON."""
    try:
        results = json.loads(path.read_text().strip().splitlines()[-1])["results"]
        return {times.name: times for times in map(_read_result, results)}
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise UsageError(f"{path} is not the output of `choral bench gpu`: {error!r}") from error


def _read_result(result: dict[str, Any]) -> StepTimes:
    name = f"{result['shape']} {result['compute_type']}"
    steps = [(int(re.findall(r"\d+", step["name"])[-1]), step["measured_ms"]) for step in result["steps"]]
    loads = result["loads"]
    measured = {"windows": loads["windows_per_s"]}
    measured |= {str(each["callers"]): each["requests_per_s"] for each in loads["requests"]}
    slots = MAX_SLOTS.get(name, DEFAULT_SLOTS)
    return StepTimes(name, result["encoder"]["measured_ms"], tuple(sorted(steps)), slots, measured)
