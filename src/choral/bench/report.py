"""What benchmarks share when they tell what they found: bars for the terminal, and the last line, JSON.

`bars` draws in plain text and needs no terminal. `json_line` adds where it was measured: machine, package versions,
and the commit where Choral runs from a checkout. `verdict` words a bar that was set: what was wanted and whether it
holds.
"""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import choral
from choral.bench.machine import this_machine

BAR_WIDTH = 40
EIGHTHS = "▏▎▍▌▋▊▉█"


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """A bar a row, the largest value over the full width: `(name, value, how the value is shown)`."""
    name_width = max((len(name) for name, _, _ in rows), default=0)
    largest = max((value for _, value, _ in rows if math.isfinite(value)), default=0.0)
    lines = [f"{name:<{name_width}}  {bar(value, largest):<{BAR_WIDTH}}  {shown}" for name, value, shown in rows]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def bar(value: float, largest: float, width: int = BAR_WIDTH) -> str:
    """A bar in eighths of a character; whatever is above nothing is seen."""
    if not (largest > 0 and value > 0):
        return ""
    n_eighths = max(1, round(min(value / largest, 1.0) * width * 8))
    full, rest = divmod(n_eighths, 8)
    return EIGHTHS[-1] * full + (EIGHTHS[rest - 1] if rest else "")


def json_line(benchmark: str, fields: Mapping[str, Any]) -> str:
    """One line without its end; values that are not finite become null."""
    facts = {"machine": dataclasses.asdict(this_machine()), "commit": commit()}
    return json.dumps(plain({"benchmark": benchmark, **fields, **facts}), ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """What JSON can say: dataclasses as objects, numbers to six figures."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    match value:
        case Mapping():
            return {str(key): plain(own) for key, own in value.items()}
        case list() | tuple():
            return [plain(own) for own in value]
        case float():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case Path():
            return str(value)
        case _:
            return value


def verdict(name: str, *, holds: bool | None) -> str:
    """A bar and whether it holds; None: this run cannot tell."""
    return f"{name}: {'not measured here' if holds is None else 'yes' if holds else 'no'}\n"


def commit() -> str | None:
    """Of the checkout that runs, "-changed" at its end where files differ from it; None for an installed package."""
    package = Path(choral.__file__).resolve().parent
    root = package.parent.parent
    if not (root / ".git").exists():
        return None
    try:
        found = git(root, "rev-parse", "--short=12", "HEAD")
        return found + ("-changed" if git(root, "status", "--porcelain", "--", str(package)) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
