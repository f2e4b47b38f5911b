"""The `choral` command in a pseudo-terminal, and the screen that a user would see."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from interruptible import start_interruptible

COMMAND = [sys.executable, "-m", "choral.cli.main"]
COLUMNS = 200


class Screen:
    """A terminal emulator with the control codes that progress bars use: the visible lines, and all output."""

    def __init__(self) -> None:
        self.output = ""
        self._rows = [""]
        self._row = self._column = 0

    @property
    def lines(self) -> list[str]:
        return [row.rstrip() for row in self._rows if row.strip()]

    def shows(self, pattern: str) -> bool:
        """Whether a visible line matches."""
        return re.search(pattern, "\n".join(self.lines), re.MULTILINE) is not None

    def feed(self, text: str) -> None:
        self.output += text
        for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\s\S]", text):
            self._apply(token)

    def _apply(self, token: str) -> None:
        if token == "\n":
            self._row += 1
            if self._row == len(self._rows):
                self._rows.append("")
        elif token == "\r":
            self._column = 0
        elif token == "\x1b[2K":
            self._rows[self._row] = ""
        elif re.fullmatch(r"\x1b\[\d*A", token):
            self._row -= int(token[2:-1] or 1)
        elif token[0] != "\x1b":
            row = self._rows[self._row].ljust(self._column)
            self._rows[self._row] = row[: self._column] + token + row[self._column + 1 :]
            self._column += 1


class Terminal:
    """The command with a terminal on standard error and, unless given, on standard input and output."""

    def __init__(
        self, arguments: list[str], folder: Path, stdout: int | None = None, stdin: int | None = None, height: int = 50
    ) -> None:
        self.screen = Screen()
        self._master, slave = pty.openpty()
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(height)}
        self.process = start_interruptible(
            [*COMMAND, *arguments],
            stdin=slave if stdin is None else stdin,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            cwd=folder,
            env=env,
            start_new_session=True,
        )
        os.close(slave)

    def wait_for(self, condition: Callable[[Screen], bool], timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition(self.screen):
            assert time.monotonic() < deadline, f"timed out; the screen was {self.screen.lines}"
            assert self._read(), f"the command ended first; the screen was {self.screen.lines}"

    def finish(self) -> int:
        while self._read():
            pass
        return self.process.wait(timeout=60)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 60)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # how Linux reports that the other end is closed
            return False
        self.screen.feed(data.decode("utf-8", "replace"))
        return bool(data)
