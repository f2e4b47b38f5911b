"""Fixtures that run the `choral` command in a child process, with or without a terminal."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from choral.cli import outputs
from choral.storage import storage_errors
from terminal_screen import COMMAND, Terminal


class Result:
    def __init__(self, process: subprocess.CompletedProcess[bytes]) -> None:
        self.code = process.returncode
        self.out = process.stdout.decode("utf-8")
        self.errors = process.stderr.decode("utf-8")


@pytest.fixture
def choral(tmp_path: Path) -> Callable[..., Result]:
    """Run the command with these arguments in an empty folder."""

    def run(*arguments: object, stdin: bytes = b"", env: dict[str, str] | None = None) -> Result:
        process = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            timeout=300,
            check=False,
        )
        return Result(process)

    return run


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: object, **settings: Any) -> Terminal:
        opened.append(Terminal([str(argument) for argument in arguments], tmp_path, **settings))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.fixture
def clips(speech_clips: list[Path], tmp_path: Path) -> list[Path]:
    """Copies of the speech clips in the folder of the command."""
    return [Path(shutil.copy(path, tmp_path / f"clip{index}.wav")) for index, path in enumerate(speech_clips)]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every result file fails as on a full disk."""

    def fail(path: Path, content: str) -> None:
        with storage_errors(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(outputs, "write_file", fail)
