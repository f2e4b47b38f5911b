"""The moving bars, drawn with rich on standard error; they go away when the work is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from choral.cli.interrupts import held_back
from choral.cli.progress import clock, is_watched, message, printable, shorten, size, speed, time_left

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress, ProgressColumn, Task, TaskID
    from rich.table import Table

OnDownload = Callable[[int, int | None], None]
LABEL_WIDTH = 28
BAR_WIDTH = 24
MOST_BARS = 16
LINES_LEFT_FREE = 3  # the bar for all files, the line that was written last, and one for the cursor


class Bars:
    """A bar a file at work, as many as fit on the screen, and with several files one for all of them."""

    def __init__(self, n_files: int) -> None:
        fields = [_field_column(name) for name in ("shown", "speed", "left")]
        self._progress = _progress([_text_column(lambda task: task.description), _bar_column(), *fields])
        self._live: Live | None = None
        self._n_files = n_files
        self._n_finished = 0
        self._finished_audio_s = 0.0
        self._at_work: list[FileBar] = []
        self._started_s = time.monotonic()
        self._all = self._add_bar("all files", 1.0) if n_files > 1 else None

    @contextmanager
    def shown(self) -> Iterator[None]:
        self._draw()
        try:
            yield
        finally:
            self._erase()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The bars are taken away, so that what others write to the terminal stays whole."""
        self._erase()
        try:
            yield
        finally:
            self._draw()

    def start_file(self, label: str) -> FileBar:
        task = self._add_bar(shorten(label, LABEL_WIDTH), None)
        bar = FileBar(self._progress, task, on_moved=self._show_all, on_finished=self._finish_file)
        self._at_work.append(bar)
        self._show_all()
        return bar

    def note(self, line: str) -> None:
        with self.paused():
            message(line)

    def _finish_file(self, bar: FileBar) -> None:
        self._at_work.remove(bar)
        self._n_finished += 1
        self._finished_audio_s += bar.done_s
        self._show_all()

    def _add_bar(self, label: str, total: float | None) -> TaskID:
        return self._progress.add_task(label, total=total, shown="", speed="", left="")

    def _draw(self) -> None:
        from rich.live import Live

        # A Live that was stopped remembers its height and would wipe the lines written since: each time a new one.
        self._live = Live(
            get_renderable=self._table,
            console=self._progress.console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            refresh_per_second=10,
        )
        with held_back():  # lines drawn by halves could not be wiped
            self._live.start(refresh=True)

    def _erase(self) -> None:
        if self._live is not None:
            with held_back():
                self._live.stop()
                self._live = None

    def _table(self) -> Table:
        """The files that were begun first, and below them the bar for all: it must not fall off a small screen."""
        room = max(1, min(MOST_BARS, self._progress.console.height - LINES_LEFT_FREE))
        files = [task for task in self._progress.tasks if task.id != self._all]
        return self._progress.make_tasks_table(
            [*files[:room], *(task for task in self._progress.tasks if task.id == self._all)]
        )

    def _show_all(self) -> None:
        """Nobody knows how long the files to come are: they are taken to be like those so far."""
        if self._all is None:
            return
        measured = [bar for bar in self._at_work if bar.total_s]
        n_known = self._n_finished + len(measured)
        done_s = self._finished_audio_s + sum(bar.done_s for bar in self._at_work)
        known_s = self._finished_audio_s + sum(bar.total_s for bar in measured)
        share = done_s / known_s * n_known / self._n_files if known_s else 0.0
        spent_s = time.monotonic() - self._started_s
        self._progress.update(
            self._all,
            completed=share,
            shown=f"{self._n_finished} of {self._n_files} done",
            speed=speed(done_s, spent_s),
            left=time_left(spent_s, share),
        )


class FileBar:
    """The bar of one file; it goes away when the file is done."""

    def __init__(
        self, progress: Progress, task: TaskID, on_moved: Callable[[], None], on_finished: Callable[[FileBar], None]
    ) -> None:
        self.done_s = self.total_s = 0.0
        self._progress, self._task = progress, task
        self._on_moved, self._on_finished = on_moved, on_finished
        self._started_s = time.monotonic()

    def advance(self, done_s: float, total_s: float) -> None:
        spent_s = time.monotonic() - self._started_s
        is_length_known = 0 < total_s < float("inf")
        self.done_s = done_s
        self.total_s = max(total_s, done_s) if is_length_known else done_s
        self._progress.update(
            self._task,
            total=total_s if is_length_known else None,
            completed=done_s,
            shown=f"{clock(done_s)} of {clock(total_s)}" if is_length_known else clock(done_s),
            speed=speed(done_s, spent_s),
            left=time_left(spent_s, done_s / total_s) if is_length_known else "",
        )
        self._on_moved()

    def finish(self) -> None:
        self._progress.remove_task(self._task)
        self._on_finished(self)


@contextmanager
def download_bar(label: str, *, is_quiet: bool = False) -> Iterator[OnDownload]:
    """A moving line while a model is fetched or loaded, with a bar as soon as bytes arrive."""
    if is_quiet or not is_watched():
        yield lambda done, total: None
        return
    from rich.progress import SpinnerColumn

    def shown(task: Task) -> str:
        if not task.completed:
            return ""
        done = size(int(task.completed))
        return f"{done} of {size(int(task.total))}" if task.total else done

    def left(task: Task) -> str:
        return time_left(task.elapsed or 0.0, task.percentage / 100 if task.total else 0.0)

    columns = [
        SpinnerColumn(),
        _text_column(lambda task: task.description),
        _bar_column(),
        _text_column(shown),
        _text_column(left),
    ]
    with _progress(columns) as progress:
        task_id = progress.add_task(printable(label), total=None)
        yield lambda done, total: progress.update(task_id, completed=done, total=total)


def _progress(columns: list[ProgressColumn]) -> Progress:
    """Bars that go away when done, and leave standard output alone."""
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
    """Plain text: a file name with brackets in it is no markup."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Column(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(render(task), no_wrap=True)

    return Column()
