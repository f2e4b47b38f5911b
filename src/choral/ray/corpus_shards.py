"""A task of Ray Data: reads the recordings in a shard, a tar file (as WebDataset writes them) or a Parquet file.

Rows are yielded as they are read, so that Ray Data can hold the reader back while the engines are busy: a shard of any
size takes little memory. A shard that cannot be read becomes a row with an error.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import IO, Any

import pyarrow as pa

from choral.audio.extensions import MEDIA_EXTENSIONS
from choral.errors import ChoralError, NotAudio
from choral.ray.content import file_system_of, remote_errors
from choral.remote.urls import redact_url

AUDIO_COLUMNS = ("audio", "bytes", "audio_bytes", "wav", "mp3", "flac", "ogg", "m4a")
PARQUET_BATCH_ROWS = 16
UNIT_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string()),  # names the recording, and identifies its row in the output
        pa.field("path", pa.string()),
        pa.field("bytes", pa.large_binary()),
        pa.field("version", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("read_error", pa.string()),
        pa.field("read_error_kind", pa.string()),
    ]
)
Row = dict[str, Any]
IsDone = Callable[[Row], bool]


def read_units(table: pa.Table, *, audio_column: str | None, is_done: IsDone) -> Iterator[pa.Table]:
    """Rows of `UNIT_SCHEMA`, one a table, without those that are done."""
    for unit in table.to_pylist():
        base = {"version": unit["version"], "size_bytes": unit["size_bytes"]}
        if unit["kind"] == "audio":
            rows: Iterator[Row] = iter([{"source": unit["path"], "path": unit["path"], **base}])
        else:
            rows = _read_shard(unit, audio_column)
        for row in rows:
            if not is_done(row):
                yield pa.Table.from_pylist([row], schema=UNIT_SCHEMA)
    yield UNIT_SCHEMA.empty_table()


def _read_shard(unit: Row, audio_column: str | None) -> Iterator[Row]:
    path, version = unit["path"], unit["version"]
    seen: Counter[str] = Counter()
    try:
        with remote_errors(redact_url(path)):
            file_system, inner = file_system_of(path)
            with file_system.open(inner, "rb") as file:
                for name, data in _members(file, unit["kind"], audio_column, redact_url(path)):
                    seen[name] += 1
                    source = f"{path}#{name}" if seen[name] == 1 else f"{path}#{name}#{seen[name]}"
                    yield {"source": source, "bytes": data, "version": version, "size_bytes": len(data)}
        if not seen:
            raise NotAudio(f"{redact_url(path)} holds no audio file")
    except ChoralError as error:
        yield {"source": path, "version": version, "read_error": str(error), "read_error_kind": type(error).__name__}


def _members(file: IO[bytes], kind: str, audio_column: str | None, name: str) -> Iterator[tuple[str, bytes]]:
    try:
        yield from _tar_members(file) if kind == "tar" else _parquet_rows(file, audio_column, name)
    except (tarfile.TarError, pa.ArrowException, EOFError) as error:
        raise NotAudio(f"{name} is not a {kind} file that can be read: {error}") from error


def _tar_members(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            if member.isfile() and PurePosixPath(member.name).suffix.lower() in MEDIA_EXTENSIONS:
                opened = archive.extractfile(member)
                assert opened is not None
                yield member.name, opened.read()


def _parquet_rows(file: IO[bytes], audio_column: str | None, name: str) -> Iterator[tuple[str, bytes]]:
    """The audio is binary, or a struct with `bytes` and `path` as Hugging Face's datasets write it."""
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(file)
    column = _audio_column(parquet.schema_arrow, audio_column, name)
    number = 0
    for batch in parquet.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=[column]):
        for value in batch.column(0):
            audio = value.as_py()
            data, inner = (audio.get("bytes"), audio.get("path")) if isinstance(audio, dict) else (audio, None)
            yield f"{number}/{inner}" if inner else str(number), data or b""
            number += 1


def _audio_column(schema: pa.Schema, wanted: str | None, name: str) -> str:
    names = [wanted] if wanted is not None else AUDIO_COLUMNS
    for each in names:
        if each in schema.names and _holds_bytes(schema.field(each).type):
            return each
    raise NotAudio(
        f"{name} has no column of audio bytes named {' or '.join(names)}, but {', '.join(schema.names)}: "
        "name it with --audio-column"
    )


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
