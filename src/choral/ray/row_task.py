"""A task of Ray Data: transcribes the rows of one block, several at once, on the engines of the cluster.

The task fetches, decodes, detects voice and assembles text, as a request process does for an engine of its own
machine; only windows travel. A row that cannot be transcribed becomes a row with an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from choral.errors import ChoralError, EngineClosed, UsageError
from choral.longform.transcriber import Transcriber
from choral.options import TranscribeOptions
from choral.ray.cluster_engine import cluster_transcriber
from choral.ray.content import Content, open_content
from choral.ray.engine_pool import EnginePool
from choral.ray.transcript_table import TRANSCRIPT_SCHEMA, error_row, transcript_row
from choral.serving.error_messages import error_from_name
from choral.serving.runtime import Runtime
from choral.serving.runtime_plan import RuntimePlan

PLAN = RuntimePlan(0, "Ray runs the processes")
BYTES, PATH = "bytes", "path"
Row = dict[str, Any]

_lock = threading.Lock()
_transcribers: dict[str, Transcriber] = {}  # of this process, by the id of their pool


@dataclass(frozen=True)
class RowColumns:
    """Which columns of the input have the audio; the others are kept."""

    path: str | None
    bytes: str | None
    name: str | None = None  # for messages; None: the path

    @property
    def dropped(self) -> set[str]:
        return {self.bytes} if self.bytes is not None else set()


@dataclass(frozen=True)
class RowTask:
    pool: EnginePool
    options: TranscribeOptions
    columns: RowColumns
    rows_at_once: int
    is_done: Callable[[Row, str], bool] | None = None  # with the hash of the content: such a row is left out

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        kept = [name for name in table.column_names if name not in self.columns.dropped | set(TRANSCRIPT_SCHEMA.names)]
        schema = pa.schema([*(table.schema.field(name) for name in kept), *TRANSCRIPT_SCHEMA])
        for row, outcome in self._outcomes(_rows(table)):
            yield pa.Table.from_pylist([{**{name: row[name] for name in kept}, **outcome}], schema=schema)
        yield schema.empty_table()  # a block without rows keeps the columns

    def _outcomes(self, rows: Iterator[Row]) -> Iterator[tuple[Row, Row]]:
        failed: list[tuple[Row, Row]] = []
        opened: dict[int, tuple[Row, Content]] = {}

        def inputs() -> Iterator[Any]:
            for row in rows:
                try:
                    content = self._open(row)
                except ChoralError as error:
                    failed.append((row, error_row(error)))
                    continue
                if self.is_done is not None and self.is_done(row, content.sha256):
                    content.close()
                    continue
                opened[id(content.audio)] = row, content
                yield content.audio

        runtime = Runtime(self._transcriber(), PLAN, self.rows_at_once)
        with runtime:
            for audio, outcome in runtime.transcribe_many(inputs(), self.options, "batch"):
                row, content = opened.pop(id(audio))
                content.close()
                if isinstance(outcome, EngineClosed | UsageError):  # would be the same for every row
                    raise outcome
                yield row, transcript_row(outcome, content.sha256)
                while failed:
                    yield failed.pop()
        yield from failed

    def _open(self, row: Row) -> Content:
        if row.get("read_error") is not None:  # of the shard it would have come from
            raise error_from_name(row["read_error_kind"], row["read_error"])
        data = row.get(self.columns.bytes) if self.columns.bytes is not None else None
        path = row.get(self.columns.path) if self.columns.path is not None else None
        if data is None and path is None:
            raise UsageError("this row has neither a path nor bytes of audio")
        name = row.get(self.columns.name) if self.columns.name is not None else None
        return open_content(path, data, name or path or "the bytes of this row")

    def _transcriber(self) -> Transcriber:
        """One for each process: its tokenizer takes a while to build, and it counts the windows in flight."""
        with _lock:
            if self.pool.id not in _transcribers:
                _transcribers.clear()
                _transcribers[self.pool.id] = cluster_transcriber(self.pool)
            return _transcribers[self.pool.id]


def _rows(table: pa.Table) -> Iterator[Row]:
    """One at a time: the bytes of all would be in memory twice."""
    for i in range(table.num_rows):
        (row,) = table.slice(i, 1).to_pylist()
        yield row
