"""What benchmarks print at the end: bars, verdicts, and a last line of JSON with the machine, versions and commit."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import choral

BAR_WIDTH = 40
EIGHTHS = "▏▎▍▌▋▊▉█"
PACKAGES = (
    "choral",
    "numpy",
    "av",
    "onnxruntime",
    "torch",
    "ctranslate2",
    "openai-whisper",
    "faster-whisper",
    "transformers",
    "pywhispercpp",
)


@dataclasses.dataclass(frozen=True)
class Machine:
    cpu: str
    n_cpus: int
    versions: dict[str, str]


def this_machine() -> Machine:
    return Machine(cpu=_cpu_name(), n_cpus=os.cpu_count() or 1, versions=_versions())


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """A text bar for each `(name, value, label)`; the largest value takes the full width."""
    name_width = max((len(name) for name, _, _ in rows), default=0)
    largest = max((value for _, value, _ in rows if math.isfinite(value)), default=0.0)
    lines = [f"{name:<{name_width}}  {bar(value, largest):<{BAR_WIDTH}}  {label}" for name, value, label in rows]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def bar(value: float, largest: float) -> str:
    """Drawn in eighths of a character; any value above zero shows at least one."""
    if not (largest > 0 and value > 0):
        return ""
    n_eighths = max(1, round(min(value / largest, 1.0) * BAR_WIDTH * 8))
    full, rest = divmod(n_eighths, 8)
    return EIGHTHS[-1] * full + (EIGHTHS[rest - 1] if rest else "")


def verdict(name: str, *, holds: bool | None) -> str:
    """One line that says whether a target holds; None: this run does not measure it."""
    return f"{name}: {'not measured here' if holds is None else 'yes' if holds else 'no'}\n"


def verdicts(targets: Sequence[tuple[str, bool | None]]) -> str:
    return "".join(verdict(name, holds=holds) for name, holds in targets)


def json_line(benchmark: str, fields: Mapping[str, Any]) -> str:
    """One line without a line break; values that are not finite become null."""
    context = {"machine": dataclasses.asdict(this_machine()), "commit": commit()}
    return json.dumps(to_json({"benchmark": benchmark, **fields, **context}), ensure_ascii=False, allow_nan=False)


def to_json(value: Any) -> Any:
    """Dataclasses as objects, floats rounded to six significant digits."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    match value:
        case Mapping():
            return {str(key): to_json(item) for key, item in value.items()}
        case list() | tuple():
            return [to_json(item) for item in value]
        case float():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case Path():
            return str(value)
        case _:
            return value


def commit() -> str | None:
    """The commit of this checkout, with "-changed" if the package differs from it; None for an installed package."""
    package = Path(choral.__file__).resolve().parent
    root = package.parent.parent
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return head + ("-changed" if _git(root, "status", "--porcelain", "--", str(package)) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
