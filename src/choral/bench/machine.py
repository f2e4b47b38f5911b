"""Where a measurement was made: part of every benchmark's last line."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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


@dataclass(frozen=True)
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
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
