"""What is told while work goes on: messages, notes and bars, all on standard error.

`open_progress` gives moving bars where standard error is a terminal, and nothing that moves everywhere else.
Messages (errors, warnings) are always shown; notes only to a person who watches and did not ask for quiet. Control
characters, which a file's name may hold, are made visible in all of them.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol


class FileProgress(Protocol):
    """How far one file is."""

    def advance(self, done_s: float, total_s: float) -> None: ...
    def finish(self) -> None: ...


class Display(Protocol):
    """Shows the files of one run as they are worked on, several at once."""

    def start_file(self, label: str) -> FileProgress: ...
    def paused(self) -> AbstractContextManager[None]:
        """While this lasts others may write to the terminal."""
        ...

    def note(self, line: str) -> None: ...


def is_watched() -> bool:
    """Whether a person sees standard error on a terminal that can redraw lines."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def message(*lines: str) -> None:
    """Lines on standard error, whoever reads it; where nothing can be written there, that is no reason to fail."""
    if sys.stderr is None:
        return
    try:
        print(*map(printable, lines), sep="\n", file=sys.stderr, flush=True)
    except OSError:
        # Python flushes standard error once more on its way out, and would change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def printable(text: str) -> str:
    """The text in one line without control characters: a file's name must not move the cursor of a terminal."""
    return "".join(letter if _is_shown(letter) else ascii(letter)[1:-1] for letter in text)


def _is_shown(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"


@contextmanager
def open_progress(n_files: int, *, is_quiet: bool) -> Iterator[Display]:
    if is_quiet or not is_watched():
        yield Unseen()
        return
    from choral.cli.bars import Bars

    bars = Bars(n_files)
    with bars.shown():
        yield bars


class Unseen:
    """No bars and no notes."""

    def start_file(self, label: str) -> FileProgress:
        return UnseenFile()

    def note(self, line: str) -> None: ...

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()


class UnseenFile:
    def advance(self, done_s: float, total_s: float) -> None: ...
    def finish(self) -> None: ...


def clock(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, second = divmod(int(seconds + 0.5), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def speed(audio_s: float, spent_s: float) -> str:
    if audio_s <= 0 or spent_s <= 0:
        return ""
    times = audio_s / spent_s
    return f"{times:.0f}× real time" if times >= 10 else f"{times:.1f}× real time"


def size(n_bytes: int) -> str:
    if n_bytes >= 1_000_000_000:
        return f"{n_bytes / 1e9:.2f} GB"
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1_000_000 else f"{n_bytes / 1e3:.0f} kB"


def shorten(label: str, width: int) -> str:
    """The label in one line, with its middle left out where it is too wide."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in label)
    if len(shown) <= width:
        return shown
    tail = (width - 1) // 2
    return f"{shown[: width - 1 - tail]}…{shown[-tail:]}"


def time_left(spent_s: float, share: float) -> str:
    return f"{clock(spent_s * (1 - share) / share)} left" if 0 < share < 1 else ""
