"""Text on standard output and standard error: results, messages, and how numbers and tables are formatted.

Results go to standard output with `write_stdout`; errors and warnings go to standard error with `message`, which makes
control characters visible because a file name may contain them.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Collection, Sequence

from choral.errors import StorageError


class StdoutClosed(Exception):
    """The reader of standard output closed the pipe, as `head` does: a reason to stop, not an error."""


def require_stdout() -> None:
    if sys.stdout is None:
        raise StorageError("cannot write to standard output: it is closed")


def write_stdout(content: str) -> None:
    require_stdout()
    try:
        sys.stdout.write(content)
        sys.stdout.flush()
    except BrokenPipeError:
        raise StdoutClosed from None
    except OSError as error:
        raise StorageError(f"cannot write to standard output: {error.strerror}") from error


def message(*lines: str) -> None:
    """Print lines on standard error; a standard error that cannot be written never fails the command."""
    if sys.stderr is None:
        return
    try:
        print(*map(printable, lines), sep="\n", file=sys.stderr, flush=True)
    except OSError:
        # Python flushes standard error again at exit, and a failure there would change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def is_terminal() -> bool:
    """Whether standard error is a terminal that can redraw lines."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """The text on one line with control characters escaped, so that a file name cannot move the cursor."""
    return "".join(letter if _is_printable(letter) else ascii(letter)[1:-1] for letter in text)


def _is_printable(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"


def shorten(label: str, width: int) -> str:
    """The label on one line, with its middle replaced by an ellipsis where it is too wide."""
    line = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in label)
    if len(line) <= width:
        return line
    n_tail = (width - 1) // 2
    return f"{line[: width - 1 - n_tail]}…{line[-n_tail:]}"


def format_clock(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, second = divmod(int(seconds + 0.5), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def format_elapsed(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else format_clock(seconds)


def format_speed(audio_s: float, elapsed_s: float) -> str:
    if audio_s <= 0 or elapsed_s <= 0:
        return ""
    ratio = audio_s / elapsed_s
    return f"{ratio:.0f}× real time" if ratio >= 10 else f"{ratio:.1f}× real time"


def format_time_left(elapsed_s: float, fraction_done: float) -> str:
    if not 0 < fraction_done < 1:
        return ""
    return f"{format_clock(elapsed_s * (1 - fraction_done) / fraction_done)} left"


def format_table(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> str:
    """A text table with columns two spaces apart; the columns in `numbers` are right-aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "".join(_table_line(row, widths, numbers) for row in rows)


def _table_line(row: Sequence[str], widths: Sequence[int], numbers: Collection[int]) -> str:
    cells = [
        cell.rjust(width) if index in numbers else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip() + "\n"
