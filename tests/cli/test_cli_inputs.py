"""What the arguments stand for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from choral.cli.inputs import Inputs, expand
from choral.errors import AudioNotFound, UsageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "b.mp3",
        "a.WAV",
        "notes.txt",
        ".hidden.mp3",
        "deep/er/c.mkv",
        "deep/d.opus",
        ".git/e.mp3",
        "odd[1].mp3",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sources(inputs: Inputs) -> list[str]:
    return [item.source for item in inputs.found]


def test_a_folder_gives_its_media_files_in_order(folder: Path) -> None:
    inputs = expand(["."])
    assert sources(inputs) == ["./a.WAV", "./b.mp3", "./odd[1].mp3", "./deep/d.opus", "./deep/er/c.mkv"]
    assert inputs.failures == ()
    assert not inputs.is_single


def test_a_folder_with_one_file_still_stands_for_many(folder: Path) -> None:
    inputs = expand(["deep/er"])
    assert sources(inputs) == ["deep/er/c.mkv"]
    assert not inputs.is_single


def test_a_named_file_is_taken_whatever_its_ending(folder: Path) -> None:
    inputs = expand(["notes.txt"])
    assert sources(inputs) == ["notes.txt"]
    assert inputs.is_single


def test_globs_are_expanded_where_the_shell_did_not(folder: Path) -> None:
    assert sources(expand(["*.mp3"])) == ["b.mp3", "odd[1].mp3"]
    assert sources(expand(["**/*.opus"])) == ["deep/d.opus"]
    assert sources(expand(["dee*"])) == ["deep/d.opus", "deep/er/c.mkv"]


def test_a_file_with_brackets_in_its_name_is_no_glob(folder: Path) -> None:
    assert sources(expand(["odd[1].mp3"])) == ["odd[1].mp3"]


def test_every_input_comes_once(folder: Path) -> None:
    os.symlink("b.mp3", "link.mp3")
    inputs = expand(["b.mp3", "./b.mp3", "link.mp3", "*.mp3", "-", "-"])
    assert sources(inputs) == ["b.mp3", "odd[1].mp3", "-"]


def test_what_is_not_there_is_told_and_the_others_stay(folder: Path) -> None:
    inputs = expand(["no.mp3", "b.mp3", "empty", "*.flac", "b.mp3/x", "bad\0name"])
    assert sources(inputs) == ["b.mp3"]
    assert [failure.label for failure in inputs.failures] == ["no.mp3", "empty", "*.flac", "b.mp3/x", "bad\0name"]
    assert all(isinstance(failure.error, AudioNotFound) for failure in inputs.failures)
    assert str(inputs.failures[0]) == "no.mp3: there is no such file or folder; check the spelling"
    assert "no audio or video file" in str(inputs.failures[1])
    assert "no file matches" in str(inputs.failures[2])


def test_a_link_to_nowhere_is_not_there(folder: Path) -> None:
    os.symlink("gone.mp3", "broken.mp3")
    assert [failure.label for failure in expand(["broken.mp3"]).failures] == ["broken.mp3"]


def test_addresses_keep_their_name_and_hide_their_secrets() -> None:
    (item,) = expand(["https://me:secret@example.org/talks/my%20talk.mp3?key=secret"]).found
    assert item.source == "https://me:secret@example.org/talks/my%20talk.mp3?key=secret"
    assert item.file_name == "my talk.mp3"
    assert item.label == "https://example.org/talks/my%20talk.mp3"
    assert expand(["HTTP://example.org/"]).found[0].file_name == "example.org"
    assert "/" not in expand(["http://example.org/a%2Fb.mp3"]).found[0].file_name


@pytest.mark.parametrize(
    ("address", "label", "scheme"),
    [
        ("ftp://me:secret@example.org/y.mp3", "ftp://example.org/y.mp3", "ftp"),
        ("file:///tmp/y.mp3", "file:///tmp/y.mp3", "file"),
        ("S3://bucket/*.mp3", "s3://bucket/*.mp3", "s3"),
    ],
)
def test_other_addresses_are_told_apart_from_missing_files(address: str, label: str, scheme: str) -> None:
    inputs = expand([address])
    assert inputs.found == ()
    (failure,) = inputs.failures
    assert isinstance(failure.error, UsageError)
    assert str(failure) == f"{label}: {scheme} addresses are not supported; give a path or an http or https address"


def test_standard_input() -> None:
    (item,) = expand(["-"]).found
    assert (item.label, item.file_name, item.is_file) == ("<stdin>", "stdin", False)
