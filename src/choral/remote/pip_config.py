"""pip's configuration on this machine: its indexes, certificates and proxy.

`pip config list` is run, so that configuration files, environment variables and virtual environments count as for an
installation. Without pip, its environment variables still count. Nothing is installed.
"""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from dataclasses import dataclass

_SECTIONS = ("global", "install", "download", ":env:")  # later sections override earlier ones
_TIMEOUT_S = 60
_PRINT_DEFAULT_INDEX = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


@dataclass(frozen=True)
class PipSettings:
    index_urls: tuple[str, ...]  # the main index first
    cert: str | None
    proxy: str | None
    problem: str | None = None  # why there is no main index, and what to do


@functools.cache
def pip_settings() -> PipSettings:
    """Read once per process."""
    values = _read_from_pip()
    has_pip = values is not None
    if values is None:
        values = _read_from_environment()
    cert, proxy = values.get("cert"), values.get("proxy")
    if values.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        problem = "pip's setting no-index forbids package indexes: unset it (PIP_NO_INDEX) to allow them"
        return PipSettings((), cert, proxy, problem)
    main = values.get("index-url") or (_default_index() if has_pip else None)
    extra = values.get("extra-index-url", "").split()
    if main is None:
        problem = (
            "pip is not installed for this Python, so its package index is not known: "
            "set PIP_INDEX_URL to the URL of one, or run `python -m ensurepip`"
        )
        return PipSettings(tuple(extra), cert, proxy, problem)
    return PipSettings((main.strip(), *extra), cert, proxy)


def _read_from_pip() -> dict[str, str] | None:
    listing = _run_python("-m", "pip", "config", "list")
    if listing is None:
        return None
    values: dict[str, str] = {}
    entries = [_parse(line) for line in listing.splitlines() if "=" in line]
    for name in _SECTIONS:
        values.update({key: value for section, key, value in entries if section == name})
    return values


def _parse(line: str) -> tuple[str, str, str]:
    name, _, quoted = line.partition("=")
    section, _, key = name.strip().rpartition(".")
    try:
        return section, key, str(ast.literal_eval(quoted.strip()))
    except (ValueError, SyntaxError):
        return section, key, quoted.strip()


def _read_from_environment() -> dict[str, str]:
    keys = ("index-url", "extra-index-url", "cert", "proxy", "no-index")
    named = {key: os.environ.get("PIP_" + key.upper().replace("-", "_")) for key in keys}
    return {key: value for key, value in named.items() if value}


def _default_index() -> str | None:
    printed = _run_python("-c", _PRINT_DEFAULT_INDEX)
    return printed.strip() if printed else None


def _run_python(*arguments: str) -> str | None:
    # -P: a folder named pip in the working directory is not imported.
    command = [sys.executable, "-P", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
