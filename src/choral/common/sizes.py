"""Numbers of bytes in messages: in decimal units for files and memory, in binary units for limits, which are such."""

from __future__ import annotations


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
