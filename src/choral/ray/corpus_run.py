"""Transcribes a corpus on a Ray cluster: reads units, leaves out what is done, and appends rows to the output.

Only the driver writes, a part every few seconds: whatever is killed, each row is there once or not yet, and the next
run makes those that are missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from choral.config import EngineSettings
from choral.errors import ChoralError, ClusterError
from choral.options import TranscribeOptions
from choral.ray.cluster import connect
from choral.ray.corpus_inputs import CorpusUnit, find_units, group_units, total_bytes, unit_row
from choral.ray.dataset import transcribe_blocks
from choral.ray.engine_pool import EnginePool, start_engines

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data import Dataset

    from choral.ray.corpus_output import CorpusOutput, DoneRows

COMMIT_S, COMMIT_ROWS = 10.0, 1000  # a part is written when either is reached
BLOCK_BYTES = 16 * 2**20  # of shards that are being read: what a task of the next stage gets
READ_CPUS = 0.01  # reading waits for storage; other than that of transcription, or Ray would join both in one task


@dataclass(frozen=True, kw_only=True)
class CorpusRequest:
    source: str
    target: str
    options: TranscribeOptions
    model: str | None = None
    settings: EngineSettings = field(default_factory=EngineSettings)
    engines: int | None = None
    address: str | None = None
    audio_column: str | None = None
    retry_errors: bool = False


@dataclass(frozen=True)
class CorpusProgress:
    """What has been committed; `total_bytes` is None where the size of a unit is not known."""

    n_units: int
    n_skipped: int = 0  # rows of earlier runs
    n_rows: int = 0
    n_errors: int = 0
    audio_s: float = 0.0
    done_bytes: int = 0
    total_bytes: int | None = None
    errors: tuple[tuple[str, str, str], ...] = ()  # of the last part: source, class, text


def transcribe_corpus(request: CorpusRequest) -> Iterator[CorpusProgress]:
    """Yields after every part; the first time before anything is transcribed."""
    ray = connect(request.address)
    from choral.ray.corpus_output import CorpusOutput

    output = CorpusOutput(request.target)
    units = find_units(request.source)
    with output.lock():
        output.sweep()  # of a run that was killed
        pool = start_engines(ray, request.model, request.settings, request.engines)
        output.require_options(_config(request, pool))
        done, n_done = output.read_done(retries_errors=request.retry_errors)
        new = [
            unit
            for unit in units
            if unit.kind != "audio" or not done.has_version({"source": unit.path, **asdict(unit)})
        ]
        progress = CorpusProgress(len(units), n_done, total_bytes=total_bytes(new))
        yield progress
        if new:
            dataset = _dataset(ray, new, pool, request, done)
            yield from commit(_tables(ray, dataset), output, progress)
        output.sweep()


def _config(request: CorpusRequest, pool: EnginePool) -> dict[str, Any]:
    """What decides the text, besides the audio."""
    default = TranscribeOptions()
    options = {name: value for name, value in asdict(request.options).items() if value != getattr(default, name)}
    return {
        "model": pool.model,
        "compute_type": pool.engine.compute_type,
        **{
            name: value if isinstance(value, str | int | float | None) else repr(value)
            for name, value in options.items()
        },
    }


def _dataset(ray: Any, units: list[CorpusUnit], pool: EnginePool, request: CorpusRequest, done: DoneRows) -> Dataset:
    import pyarrow as pa

    from choral.ray.corpus_shards import read_units

    def read(table: pa.Table) -> Iterator[pa.Table]:
        yield from read_units(table, audio_column=request.audio_column, is_done=done.has_version)

    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.issue_detectors_config.detectors = []
    context.target_max_block_size = BLOCK_BYTES
    schema = pa.schema(
        [("path", pa.string()), ("kind", pa.string()), ("version", pa.string()), ("size_bytes", pa.int64())]
    )
    with ray.data.DataContext.current(context):
        groups = group_units(units)
        found = ray.data.from_arrow([pa.Table.from_pylist(list(map(unit_row, group)), schema) for group in groups])
        rows = found.map_batches(read, batch_size=None, batch_format="pyarrow", num_cpus=READ_CPUS)
        return transcribe_blocks(
            rows,
            pool,
            request.options,
            path_column="path",
            bytes_column="bytes",
            name_column="source",
            is_done=done.has_content,
        )


def _tables(ray: Any, dataset: Dataset) -> Iterator[pa.Table]:
    """The blocks as they are finished, with the errors of tasks as typed errors."""
    try:
        yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    except ray.exceptions.RayError as error:
        if (cause := typed_cause(error)) is not None:
            raise cause from error
        raise ClusterError(
            f"the cluster failed: {str(error).strip().splitlines()[-1]}; run it again to go on"
        ) from error


def typed_cause(error: BaseException | None) -> ChoralError | None:
    """The error of ours that a task was ended by: Ray wraps it once or twice."""
    while error is not None and not isinstance(error, ChoralError):
        error = getattr(error, "cause", None) or error.__cause__
    return error


def commit(tables: Iterator[pa.Table], output: CorpusOutput, progress: CorpusProgress) -> Iterator[CorpusProgress]:
    """Also what has arrived when the cluster fails."""
    waiting: list[pa.Table] = []
    committed_s = time.monotonic()
    failure: ChoralError | None = None
    try:
        for table in tables:
            if table.num_rows:
                waiting.append(table.drop_columns(["path", "read_error", "read_error_kind"]))
            is_due = time.monotonic() > committed_s + COMMIT_S or sum(map(len, waiting)) >= COMMIT_ROWS
            if waiting and is_due:
                progress = _append(waiting, output, progress)
                waiting, committed_s = [], time.monotonic()
                yield progress
    except ChoralError as error:
        failure = error
    if waiting:
        yield _append(waiting, output, progress)
    if failure is not None:
        raise failure


def _append(tables: list[pa.Table], output: CorpusOutput, before: CorpusProgress) -> CorpusProgress:
    import pyarrow as pa

    table = pa.concat_tables(tables)
    output.append(table)
    rows = table.select(["source", "error", "error_kind", "duration_s", "size_bytes"]).to_pylist()
    errors = tuple((row["source"], row["error_kind"], row["error"]) for row in rows if row["error"] is not None)
    return CorpusProgress(
        n_units=before.n_units,
        n_skipped=before.n_skipped,
        n_rows=before.n_rows + len(rows),
        n_errors=before.n_errors + len(errors),
        audio_s=before.audio_s + sum(row["duration_s"] or 0.0 for row in rows),
        done_bytes=before.done_bytes + sum(row["size_bytes"] or 0 for row in rows),
        total_bytes=before.total_bytes,
        errors=errors,
    )
