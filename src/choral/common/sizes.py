"""Numbers of bytes in messages: in decimal units for files and memory, in binary units for limits, which are such.

And sizes and durations as people write them: 8GB, 10m.
"""

from __future__ import annotations

import re

from choral.errors import UsageError

BYTES_PER_UNIT = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
BYTES_PER_UNIT |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
SECONDS_PER_UNIT = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


def format_size(n_bytes: int) -> str:
    """75.6 MB or 3.09 GB."""
    if n_bytes >= 1_000_000_000:
        return f"{n_bytes / 1e9:.2f} GB"
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1_000_000 else f"{n_bytes / 1e3:.0f} kB"


def binary_size(n_bytes: int) -> str:
    """256 MiB or 2 GiB."""
    if n_bytes >= 2**30:
        return f"{n_bytes / 2**30:.3g} GiB"
    return f"{n_bytes / 2**20:.3g} MiB" if n_bytes >= 2**20 else f"{n_bytes} bytes"


def parse_size(name: str, text: str) -> int:
    """8GB, 500MiB or a number of bytes; `name` is the setting to blame."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?b|)", text.strip().lower(), re.ASCII)
    if found is None:
        raise UsageError(f"{name} is {text!r}; it must be a size such as 8GB, 500MiB, or a number of bytes")
    return int(float(found[1]) * BYTES_PER_UNIT[found[2]])


def parse_duration_s(name: str, text: str) -> float:
    """10m, 90s, 2h or a number of seconds; `name` is the setting to blame."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip().lower(), re.ASCII)
    if found is None:
        raise UsageError(f"{name} is {text!r}; it must be a duration such as 10m, 90s, 2h, or a number of seconds")
    return float(found[1]) * SECONDS_PER_UNIT[found[2]]
