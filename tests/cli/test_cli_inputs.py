"""Expansion of arguments into inputs: files, folders, globs and URLs."""

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


def test_folder_gives_its_media_files_in_order(folder: Path) -> None:
    inputs = expand(["."])
    assert sources(inputs) == ["./a.WAV", "./b.mp3", "./odd[1].mp3", "./deep/d.opus", "./deep/er/c.mkv"]
    assert inputs.failures == ()
    assert not inputs.is_single


def test_folder_with_one_file_is_not_a_single_input(folder: Path) -> None:
    inputs = expand(["deep/er"])
    assert sources(inputs) == ["deep/er/c.mkv"]
    assert not inputs.is_single


def test_named_file_may_have_any_extension(folder: Path) -> None:
    inputs = expand(["notes.txt"])
    assert sources(inputs) == ["notes.txt"]
    assert inputs.is_single


def test_globs_are_expanded(folder: Path) -> None:
    assert sources(expand(["*.mp3"])) == ["b.mp3", "odd[1].mp3"]
    assert sources(expand(["**/*.opus"])) == ["deep/d.opus"]
    assert sources(expand(["dee*"])) == ["deep/d.opus", "deep/er/c.mkv"]


def test_file_name_with_brackets_is_not_a_glob(folder: Path) -> None:
    assert sources(expand(["odd[1].mp3"])) == ["odd[1].mp3"]


def test_duplicates_are_removed(folder: Path) -> None:
    os.symlink("b.mp3", "link.mp3")
    inputs = expand(["b.mp3", "./b.mp3", "link.mp3", "*.mp3", "-", "-"])
    assert sources(inputs) == ["b.mp3", "odd[1].mp3", "-"]


def test_missing_inputs_are_failures(folder: Path) -> None:
    inputs = expand(["no.mp3", "b.mp3", "empty", "*.flac", "b.mp3/x", "bad\0name"])
    assert sources(inputs) == ["b.mp3"]
    assert [failure.label for failure in inputs.failures] == ["no.mp3", "empty", "*.flac", "b.mp3/x", "bad\0name"]
    assert all(isinstance(failure.error, AudioNotFound) for failure in inputs.failures)
    assert str(inputs.failures[0]) == "no.mp3: there is no such file or folder; check the spelling"
    assert "no audio or video file" in str(inputs.failures[1])
    assert "no file matches" in str(inputs.failures[2])


def test_broken_link_is_a_failure(folder: Path) -> None:
    os.symlink("gone.mp3", "broken.mp3")
    assert [failure.label for failure in expand(["broken.mp3"]).failures] == ["broken.mp3"]


def test_urls_give_file_names_and_hide_secrets() -> None:
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
def test_urls_of_other_schemes_are_refused(address: str, label: str, scheme: str) -> None:
    inputs = expand([address])
    assert inputs.found == ()
    (failure,) = inputs.failures
    assert isinstance(failure.error, UsageError)
    assert str(failure) == f"{label}: {scheme} URLs are not supported; give a path or an http or https URL"


def test_standard_input() -> None:
    (item,) = expand(["-"]).found
    assert (item.label, item.file_name, item.is_file) == ("<stdin>", "stdin", False)
