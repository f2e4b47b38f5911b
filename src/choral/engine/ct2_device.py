"""Which device and compute type CTranslate2 runs with, of those that it supports here."""

from __future__ import annotations

import ctranslate2

from choral.errors import UsageError


def pick_device(name: str) -> tuple[str, int]:
    n_devices = ctranslate2.get_cuda_device_count()
    kind, _, index = name.partition(":")
    if kind == "auto":
        kind = "cuda" if n_devices else "cpu"
    if kind == "cuda" and not n_devices:
        raise UsageError(f"device {name}: CTranslate2 finds no CUDA device here; use --device cpu, or auto")
    if kind == "cuda" and int(index or 0) >= n_devices:
        raise UsageError(f"device {name}: this machine has {n_devices} CUDA devices")
    return kind, int(index or 0)


def pick_compute_type(requested: str, kind: str) -> str:
    supported = ctranslate2.get_supported_compute_types(kind)
    if requested == "auto":
        fast = "float16" if kind == "cuda" else "int8"
        return fast if fast in supported else "float32"
    if requested not in supported:
        raise UsageError(
            f"compute type {requested}: CTranslate2 supports {', '.join(sorted(supported))} on this machine's {kind}"
        )
    return requested
