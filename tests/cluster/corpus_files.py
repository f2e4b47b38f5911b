"""Corpora of real speech, good and broken, and what is in an output folder."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def make_corpus(folder: Path, clips: Sequence[Path]) -> dict[str, Path]:
    """Files, shards and things that are none; returns the clip behind each source that can be transcribed."""
    folder.mkdir()
    expected: dict[str, Path] = {}
    for clip in clips[:2]:
        copy = folder / clip.name
        shutil.copy(clip, copy)
        expected[str(copy)] = clip
    (folder / "broken.wav").write_bytes(b"this is no audio")
    (folder / "empty.mp3").write_bytes(b"")
    (folder / "broken.tar").write_bytes(b"this is no archive" * 100)
    pq.write_table(pa.table({"id": [1]}), folder / "other.parquet")
    with tarfile.open(folder / "shard.tar", "w") as archive:
        archive.add(clips[2], "a/talk.wav")
        archive.addfile(_member("a/talk.json", b"{}"), io.BytesIO(b"{}"))
    expected[f"{folder}/shard.tar#a/talk.wav"] = clips[2]
    audio = [{"bytes": clips[3].read_bytes(), "path": "x.wav"}]
    pq.write_table(pa.table({"audio": audio}), folder / "rows.parquet")
    expected[f"{folder}/rows.parquet#0/x.wav"] = clips[3]
    return expected


def _member(name: str, data: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    return member


def read_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """By source, each of which is there once."""
    rows = pq.read_table(folder).to_pylist()
    by_source = {row["source"]: row for row in rows}
    assert len(by_source) == len(rows)
    return by_source
