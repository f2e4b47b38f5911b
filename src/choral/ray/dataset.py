"""`choral.ray.transcribe`: adds transcripts to the rows of a Ray dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from choral.config import EngineSettings
from choral.errors import UsageError
from choral.options import TranscribeOptions
from choral.ray.cluster import connect
from choral.ray.engine_pool import EnginePool, start_engines
from choral.speakers.voice_options import options_by_name

if TYPE_CHECKING:
    from ray.data import Dataset

ROWS_AT_ONCE = 8  # of a task, each on a thread
ROWS_PER_TASK = 16
TASK_CPUS = 1.0


def transcribe(
    dataset: Dataset,
    options: TranscribeOptions | None = None,
    *,
    model: str | None = None,
    path_column: str = "path",
    bytes_column: str = "bytes",
    settings: EngineSettings | None = None,
    engines: int | None = None,
    **named_options: Any,
) -> Dataset:
    """The dataset with a transcript in every row. Pass `TranscribeOptions`, or options by name: `language="en"`.

    A row has its audio in `bytes_column`, or in `path_column` the name of a file, an http(s) or an fsspec URL. Its
    other columns are kept. A row that cannot be transcribed has an `error`. `engines` is the number of engines; None:
    one per GPU or, without GPUs, one per node. They are started by this call and end with the last reference to the
    result.
    """
    if options is not None and named_options:
        raise UsageError("pass either options=, or single options by name, not both")
    names = set(dataset.columns() or ())
    if not names & {path_column, bytes_column}:
        raise UsageError(
            f"the dataset has neither a column {path_column!r} nor {bytes_column!r}, but {', '.join(sorted(names))}: "
            "give path_column= or bytes_column="
        )
    ray = connect()
    pool = start_engines(ray, model, settings or EngineSettings(), engines)
    return transcribe_blocks(
        dataset,
        pool,
        options if options is not None else options_by_name(**named_options),
        path_column=path_column if path_column in names else None,
        bytes_column=bytes_column if bytes_column in names else None,
        rows_per_task=ROWS_PER_TASK,
    )


def transcribe_blocks(
    dataset: Dataset,
    pool: EnginePool,
    options: TranscribeOptions,
    *,
    path_column: str | None,
    bytes_column: str | None,
    name_column: str | None = None,
    rows_per_task: int | None = None,
    is_done: Callable[[dict[str, Any], str], bool] | None = None,
) -> Dataset:
    """A task for each block, or for `rows_per_task` rows."""
    from choral.ray.row_task import RowColumns, RowTask

    columns = RowColumns(path_column, bytes_column, name_column)
    task = RowTask(pool, options, columns, ROWS_AT_ONCE, is_done)
    return dataset.map_batches(_function(task), batch_size=rows_per_task, batch_format="pyarrow", num_cpus=TASK_CPUS)


def _function(task: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Ray Data takes an object that can be called for a class of actors: this is the function of tasks."""

    def transcribe_rows(table: Any) -> Any:
        yield from task(table)

    return transcribe_rows
