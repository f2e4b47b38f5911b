"""Names of result files, output folders, and atomic writes."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from choral.cli.inputs import Input
from choral.cli.outputs import make_folder, plan_outputs, write_file
from choral.errors import StorageError


def names(sources: list[str], folder: Path, formats: tuple[str, ...] = ("text",)) -> list[str]:
    inputs = [Input(source, os.path.basename(source)) for source in sources]
    plan = plan_outputs(inputs, folder, formats)
    return [plan.path(item, ".txt").name for item in inputs]


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (["x/talk.mp3"], ["talk.txt"]),
        (["talk.one.mp3", "talk"], ["talk.one.txt", "talk.txt"]),
        (["a.mp3", "a.wav", "b.wav"], ["a.mp3.txt", "a.wav.txt", "b.txt"]),
        (["A.mp3", "a.wav"], ["A.mp3.txt", "a.wav.txt"]),
        (["x/a.mp3", "y/a.mp3", "z/a.mp3"], ["a.mp3.txt", "a.mp3-2.txt", "a.mp3-3.txt"]),
        (["a.mp3", "a.wav", "a.mp3.ogg"], ["a.mp3.txt", "a.wav.txt", "a.mp3.ogg.txt"]),
    ],
)
def test_results_are_named_after_their_inputs(sources: list[str], expected: list[str], tmp_path: Path) -> None:
    assert names(sources, tmp_path) == expected


def test_inputs_are_never_overwritten(tmp_path: Path) -> None:
    for name in ("talk.txt", "talk.txt.txt"):
        (tmp_path / name).write_bytes(b"audio")
    assert names([str(tmp_path / "talk.txt")], tmp_path) == ["talk.txt.txt"]
    both = [str(tmp_path / "talk.txt"), str(tmp_path / "talk.txt.txt")]
    assert not {tmp_path / name for name in names(both, tmp_path)} & {Path(source) for source in both}
    assert names([str(tmp_path / "talk.txt")], tmp_path, ("srt",)) == ["talk.txt"]


def test_long_names_are_cut(tmp_path: Path) -> None:
    (name,) = names(["ü" * 150 + ".mp3"], tmp_path)
    assert name == "ü" * 100 + ".txt"


@pytest.mark.parametrize("name", ["x." + "y" * 250, "ü" * 120 + ".mp3", "z" * 234 + "." + "y" * 19])
def test_longest_names_can_be_written(name: str, tmp_path: Path) -> None:
    inputs = [Input(f"{folder}/{name}", name) for folder in "abc"]
    plan = plan_outputs(inputs, tmp_path, ("verbose_json",))
    paths = [plan.path(item, ".partial.json") for item in inputs]
    for path in paths:
        write_file(path, "text")
    assert len(set(paths)) == 3
    assert all(path.read_text() == "text" for path in paths)


def test_file_has_its_content_and_the_usual_permissions(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    write_file(tmp_path / "a.txt", "né\r\n漢\n")
    assert (tmp_path / "a.txt").read_bytes() == "né\r\n漢\n".encode()
    assert (tmp_path / "a.txt").stat().st_mode == usual.stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "usual"]


def test_names_that_are_not_unicode_can_be_written_in_results(tmp_path: Path) -> None:
    write_file(tmp_path / "a.json", json.dumps("\udcff.mp3", ensure_ascii=False))
    assert json.loads((tmp_path / "a.json").read_text()) == "\udcff.mp3"


@pytest.fixture
def no_space() -> Iterator[None]:
    """Files may not grow beyond 1000 bytes: the system refuses as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("no_space")
def test_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(StorageError, match="the disk is full"):
        write_file(path, "x" * 5000)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_output_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(StorageError, match="out is a file, not a folder"):
        make_folder(tmp_path / "out")
    with pytest.raises(StorageError, match="could not be written"):
        make_folder(tmp_path / "out" / "deeper")


def test_folder_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="File name too long"):
        make_folder(tmp_path / ("x" * 300))


@pytest.fixture
def no_root() -> Iterator[None]:
    """Drop root, which may enter every folder."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def test_folder_without_permission_is_refused(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    request.getfixturevalue("no_root")
    with pytest.raises(StorageError, match="no permission"):
        make_folder(tmp_path / "locked" / "out")


def test_folders_are_created(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
