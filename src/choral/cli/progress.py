"""Progress on standard error: one bar per running file, drawn with rich and erased when the run ends.

`open_progress` gives moving bars where standard error is a terminal, and a display that shows nothing elsewhere or
with --quiet. Notes are shown with the bars only; errors and warnings are printed by `console.message` in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from choral.cli.console import (
    format_clock,
    format_speed,
    format_time_left,
    is_terminal,
    message,
    printable,
    shorten,
)
from choral.cli.signals import defer_signals
from choral.common.sizes import format_size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress, ProgressColumn, Task, TaskID
    from rich.table import Table

OnDownload = Callable[[int, int | None], None]
LABEL_WIDTH = 28
BAR_WIDTH = 24
MAX_BARS = 16
RESERVED_LINES = 3  # the bar for all files, the line printed last, and one for the cursor


class FileProgress(Protocol):
    """The progress of one file."""

    def advance(self, done_s: float, total_s: float) -> None: ...
    def finish(self) -> None: ...


class Display(Protocol):
    """Shows the progress of the files of one run, several at once."""

    def start_file(self, label: str) -> FileProgress: ...
    def paused(self) -> AbstractContextManager[None]:
        """Hide the bars while the block writes to the terminal."""
        ...

    def note(self, line: str) -> None: ...


@contextmanager
def open_progress(n_files: int, *, is_quiet: bool) -> Iterator[Display]:
    if is_quiet or not is_terminal():
        yield NullDisplay()
        return
    bars = Bars(n_files)
    with bars.shown():
        yield bars


class NullDisplay:
    """No bars and no notes."""

    def start_file(self, label: str) -> FileProgress:
        return NullFileProgress()

    def note(self, line: str) -> None: ...

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()


class NullFileProgress:
    def advance(self, done_s: float, total_s: float) -> None: ...
    def finish(self) -> None: ...


class Bars:
    """One bar per running file, as many as fit on the screen, and one for the whole run if it has several files."""

    def __init__(self, n_files: int) -> None:
        fields = [_field_column(name) for name in ("position", "speed", "time_left")]
        self._progress = _progress([_text_column(lambda task: task.description), _bar_column(), *fields])
        self._live: Live | None = None
        self._n_files = n_files
        self._n_finished = 0
        self._finished_audio_s = 0.0
        self._running: list[FileBar] = []
        self._started_s = time.monotonic()
        self._total = self._add_bar("all files", 1.0) if n_files > 1 else None

    @contextmanager
    def shown(self) -> Iterator[None]:
        self._draw()
        try:
            yield
        finally:
            self._erase()

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._erase()
        try:
            yield
        finally:
            self._draw()

    def start_file(self, label: str) -> FileBar:
        task = self._add_bar(shorten(label, LABEL_WIDTH), None)
        bar = FileBar(self._progress, task, on_advance=self._update_total, on_finish=self._finish_file)
        self._running.append(bar)
        self._update_total()
        return bar

    def note(self, line: str) -> None:
        with self.paused():
            message(line)

    def _finish_file(self, bar: FileBar) -> None:
        self._running.remove(bar)
        self._n_finished += 1
        self._finished_audio_s += bar.done_s
        self._update_total()

    def _add_bar(self, label: str, total: float | None) -> TaskID:
        return self._progress.add_task(label, total=total, position="", speed="", time_left="")

    def _draw(self) -> None:
        from rich.live import Live

        # A stopped Live remembers its height and would erase the lines printed since: make a new one each time.
        self._live = Live(
            get_renderable=self._table,
            console=self._progress.console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            refresh_per_second=10,
        )
        with defer_signals():  # half-drawn lines could not be erased
            self._live.start(refresh=True)

    def _erase(self) -> None:
        if self._live is not None:
            with defer_signals():
                self._live.stop()
                self._live = None

    def _table(self) -> Table:
        """The files that were started first, then the total, which must stay on a small screen."""
        n_shown = max(1, min(MAX_BARS, self._progress.console.height - RESERVED_LINES))
        files = [task for task in self._progress.tasks if task.id != self._total]
        total = [task for task in self._progress.tasks if task.id == self._total]
        return self._progress.make_tasks_table([*files[:n_shown], *total])

    def _update_total(self) -> None:
        """Estimate the whole run: files of unknown length are taken to be as long as the known ones."""
        if self._total is None:
            return
        measured = [bar for bar in self._running if bar.total_s]
        n_known = self._n_finished + len(measured)
        done_s = self._finished_audio_s + sum(bar.done_s for bar in self._running)
        known_s = self._finished_audio_s + sum(bar.total_s for bar in measured)
        fraction = done_s / known_s * n_known / self._n_files if known_s else 0.0
        elapsed_s = time.monotonic() - self._started_s
        self._progress.update(
            self._total,
            completed=fraction,
            position=f"{self._n_finished} of {self._n_files} done",
            speed=format_speed(done_s, elapsed_s),
            time_left=format_time_left(elapsed_s, fraction),
        )


class FileBar:
    """The bar of one file; it is removed when the file is finished."""

    def __init__(
        self, progress: Progress, task: TaskID, on_advance: Callable[[], None], on_finish: Callable[[FileBar], None]
    ) -> None:
        self.done_s = self.total_s = 0.0
        self._progress, self._task = progress, task
        self._on_advance, self._on_finish = on_advance, on_finish
        self._started_s = time.monotonic()

    def advance(self, done_s: float, total_s: float) -> None:
        elapsed_s = time.monotonic() - self._started_s
        is_length_known = 0 < total_s < float("inf")
        self.done_s = done_s
        self.total_s = max(total_s, done_s) if is_length_known else done_s
        position = format_clock(done_s)
        self._progress.update(
            self._task,
            total=total_s if is_length_known else None,
            completed=done_s,
            position=f"{position} of {format_clock(total_s)}" if is_length_known else position,
            speed=format_speed(done_s, elapsed_s),
            time_left=format_time_left(elapsed_s, done_s / total_s) if is_length_known else "",
        )
        self._on_advance()

    def finish(self) -> None:
        self._progress.remove_task(self._task)
        self._on_finish(self)


@contextmanager
def download_bar(label: str, *, is_quiet: bool = False) -> Iterator[OnDownload]:
    """A spinner while a model is downloaded or loaded, with a bar as soon as bytes arrive."""
    if is_quiet or not is_terminal():
        yield lambda done, total: None
        return
    from rich.progress import SpinnerColumn

    def position(task: Task) -> str:
        if not task.completed:
            return ""
        done = format_size(int(task.completed))
        return f"{done} of {format_size(int(task.total))}" if task.total else done

    def time_left(task: Task) -> str:
        return format_time_left(task.elapsed or 0.0, task.percentage / 100 if task.total else 0.0)

    label_column = _text_column(lambda task: task.description)
    columns = [SpinnerColumn(), label_column, _bar_column(), _text_column(position), _text_column(time_left)]
    with _progress(columns) as progress:
        task_id = progress.add_task(printable(label), total=None)
        yield lambda done, total: progress.update(task_id, completed=done, total=total)


def _progress(columns: list[ProgressColumn]) -> Progress:
    """Bars on standard error that are erased at the end and leave standard output alone."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    )


def _bar_column() -> ProgressColumn:
    from rich.progress import BarColumn

    return BarColumn(bar_width=BAR_WIDTH)


def _field_column(name: str) -> ProgressColumn:
    return _text_column(lambda task: str(task.fields[name]))


def _text_column(render: Callable[[Task], str]) -> ProgressColumn:
    """Plain text: square brackets in a file name are not rich markup."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Column(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(render(task), no_wrap=True)

    return Column()
