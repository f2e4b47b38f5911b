"""What a corpus consists of and what an output has, without a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from choral.errors import (
    AudioNotFound,
    ClusterError,
    FetchFailed,
    MissingDependency,
    NotAudio,
    StorageError,
    UsageError,
)
from choral.ray.content import open_content
from choral.ray.corpus_inputs import CorpusUnit, find_units, group_units
from choral.ray.corpus_output import CorpusOutput, DoneRows, row_key
from choral.ray.corpus_run import CorpusProgress, commit
from choral.ray.corpus_shards import read_units
from choral.ray.transcript_table import TRANSCRIPT_SCHEMA, error_row
from cluster.corpus_files import make_corpus, read_rows

OUTPUT_SCHEMA = pa.schema([("source", pa.string()), ("version", pa.string()), *TRANSCRIPT_SCHEMA])
DROPPED = {name: pa.array([None], pa.string()) for name in ("path", "read_error", "read_error_kind")}


def output_table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=OUTPUT_SCHEMA)


class TestInputs:
    def test_a_folder_gives_media_files_and_shards(self, tmp_path: Path) -> None:
        for name in ("b.mp3", "a.WAV", "notes.txt", "x.tar", "y.parquet", ".hidden.wav", "_choral.json"):
            (tmp_path / name).write_bytes(b"x")
        units = find_units(str(tmp_path))
        assert [(Path(unit.path).name, unit.kind) for unit in units] == [
            ("a.WAV", "audio"),
            ("b.mp3", "audio"),
            ("x.tar", "tar"),
            ("y.parquet", "parquet"),
        ]
        assert all(unit.version and unit.size_bytes == 1 for unit in units)

    def test_a_list_has_paths_and_urls_and_each_counts_once(self, tmp_path: Path) -> None:
        (tmp_path / "a.wav").write_bytes(b"x")
        listing = tmp_path / "all.txt"
        listing.write_text("# talks\na.wav\n\na.wav\nmissing.wav\nhttps://example.org/b.mp3\n")
        units = find_units(str(listing))
        assert [unit.path for unit in units] == [
            str(tmp_path / "a.wav"),
            str(tmp_path / "missing.wav"),
            "https://example.org/b.mp3",
        ]
        assert [unit.version is None for unit in units] == [False, True, True]

    def test_a_pattern_and_a_storage_url(self, tmp_path: Path) -> None:
        (tmp_path / "a.wav").write_bytes(b"x")
        assert [unit.path for unit in find_units(f"{tmp_path}/*.wav")] == [str(tmp_path / "a.wav")]
        fsspec.filesystem("memory").pipe_file("/corpus/sub/b.flac", b"abc")
        (unit,) = find_units("memory://corpus")
        assert unit.path == "memory:///corpus/sub/b.flac"
        assert unit.size_bytes == 3
        content = open_content(unit.path, None, unit.path)
        assert content.audio.file.read() == b"abc"
        content.close()

    @pytest.mark.parametrize("source", ["{folder}", "{folder}/*.wav", "memory://nothing", "kind://x/y"])
    def test_nothing_found_is_an_error(self, source: str, tmp_path: Path) -> None:
        with pytest.raises(AudioNotFound):
            find_units(source.format(folder=tmp_path))

    def test_the_package_of_a_storage_may_be_missing(self) -> None:
        with pytest.raises(MissingDependency, match="adlfs"):
            find_units("abfs://bucket/talks")

    def test_the_longest_start_first_and_alone(self) -> None:
        sizes = {"short": 10, "long": 200 * 2**20, "middle": 50 * 2**20}
        units = [CorpusUnit(name, "audio", None, size) for name, size in sizes.items()]
        units += [CorpusUnit("shard.tar", "tar", None, 20), CorpusUnit("unknown", "audio")]
        groups = [[unit.path for unit in group] for group in group_units(units)]
        assert groups == [["long"], ["middle"], ["shard.tar"], ["short", "unknown"]]


class TestContent:
    def test_what_cannot_be_read_is_an_audio_error(self, tmp_path: Path) -> None:
        with pytest.raises(AudioNotFound):
            open_content(str(tmp_path / "no.wav"), None, "no.wav")
        with pytest.raises(AudioNotFound, match="folder"):
            open_content(str(tmp_path), None, "folder")
        with pytest.raises(FetchFailed):
            open_content("http://127.0.0.1:9/talk.mp3", None, "talk.mp3")


class TestShards:
    def test_recordings_and_errors(self, tmp_path: Path, speech_clips: list[Path]) -> None:
        folder = tmp_path / "corpus"
        expected = make_corpus(folder, speech_clips)
        units = pa.Table.from_pylist([unit.__dict__ for unit in find_units(str(folder))])
        rows = [
            row
            for table in read_units(units, audio_column=None, is_done=lambda row: False)
            for row in table.to_pylist()
        ]
        shards = {row["source"]: row["bytes"] for row in rows if row["bytes"] is not None}
        assert shards == {source: clip.read_bytes() for source, clip in expected.items() if "#" in source}
        errors = {Path(row["source"]).name: row["read_error"] for row in rows if row["read_error"] is not None}
        assert errors.keys() == {"broken.tar", "other.parquet"}
        assert "not a tar file" in errors["broken.tar"]
        assert "--audio-column" in errors["other.parquet"]
        assert {row["read_error_kind"] for row in rows} == {None, NotAudio.__name__}


class TestOutput:
    def test_rows_that_are_done(self, tmp_path: Path) -> None:
        output = CorpusOutput(str(tmp_path / "out"))
        failed, lost = error_row(NotAudio("no audio"), "f"), error_row(FetchFailed("no network"))
        output.append(
            output_table(
                {"source": "a", "version": "1", "content_sha256": "s"},
                {"source": "b", "version": "1", **failed},
                {"source": "c", "version": "1", **lost},
            )
        )
        done, n_done = CorpusOutput(str(tmp_path / "out")).read_done(retries_errors=False)
        assert n_done == 2
        assert [done.has_version({"source": name, "version": "1"}) for name in "abcd"] == [True, True, False, False]
        assert not done.has_version({"source": "a", "version": "2"})
        assert not done.has_version({"source": "a", "version": None})
        assert done.has_content({"source": "a"}, "s")
        assert not done.has_content({"source": "b"}, "s")
        assert output.read_done(retries_errors=True)[1] == 1

    def test_keys_are_found_among_many(self) -> None:
        keys = {row_key(f"{i}", "") for i in range(1000)}
        done = DoneRows.of(keys)
        assert all(key in done for key in keys)
        assert not any(row_key(f"{i}", "x") in done for i in range(1000))
        assert row_key("a", "") not in DoneRows.of(set())

    def test_a_later_row_replaces_an_earlier_one(self, tmp_path: Path) -> None:
        output = CorpusOutput(str(tmp_path))
        output.append(output_table({"source": "a", "text": "old"}, {"source": "b", "text": "kept"}))
        output.append(output_table({"source": "a", "text": "newer"}))
        output.append(output_table({"source": "a", "text": "new"}))
        assert CorpusOutput(str(tmp_path)).sweep() == 2
        assert {name: row["text"] for name, row in read_rows(tmp_path).items()} == {"a": "new", "b": "kept"}
        assert CorpusOutput(str(tmp_path)).sweep() == 0

    def test_a_part_that_was_being_written_is_no_part(self, tmp_path: Path) -> None:
        output = CorpusOutput(str(tmp_path))
        output.append(output_table({"source": "a"}))
        (tmp_path / "part-00000001.parquet.tmp").write_bytes(b"PAR1 half")
        again = CorpusOutput(str(tmp_path))
        assert again.read_done(retries_errors=False)[1] == 1
        again.append(output_table({"source": "b"}))
        assert again.sweep() == 0
        assert sorted(name for name in os.listdir(tmp_path) if name.endswith("parquet")) == [
            "part-00000000.parquet",
            "part-00000001.parquet",
        ]

    def test_in_a_storage(self) -> None:
        output = CorpusOutput("memory://texts")
        output.require_options({"model": "tiny.en"})
        output.append(output_table({"source": "a", "version": "1"}))
        done, _ = CorpusOutput("memory://texts").read_done(retries_errors=False)
        assert done.has_version({"source": "a", "version": "1"})

    def test_options_may_not_change(self, tmp_path: Path) -> None:
        CorpusOutput(str(tmp_path)).require_options({"model": "tiny.en"})
        CorpusOutput(str(tmp_path)).require_options({"model": "tiny.en"})
        with pytest.raises(UsageError, match=r"other options \(language\)"):
            CorpusOutput(str(tmp_path)).require_options({"model": "tiny.en", "language": "en"})

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(StorageError):
            CorpusOutput(str(tmp_path / "file" / "out"))

    def test_what_has_arrived_is_written_when_the_cluster_fails(self, tmp_path: Path) -> None:
        def tables() -> Iterator[pa.Table]:
            table = output_table({"source": "a", "duration_s": 3.0})
            for name, column in {**DROPPED, "size_bytes": pa.array([10], pa.int64())}.items():
                table = table.append_column(name, column)
            yield table
            raise ClusterError("the cluster failed")

        progress = commit(tables(), CorpusOutput(str(tmp_path)), CorpusProgress(n_units=2))
        done = next(progress)
        assert (done.n_rows, done.audio_s, done.done_bytes) == (1, 3.0, 10)
        with pytest.raises(ClusterError):
            next(progress)
        assert read_rows(tmp_path).keys() == {"a"}
