"""Formatting of numbers, labels and errors."""

from __future__ import annotations

import pytest

from choral.cli.console import format_clock, format_speed, format_time_left, printable, shorten
from choral.cli.failures import Failure, Failures, error_lines
from choral.common.sizes import binary_size, format_size
from choral.errors import AudioEmpty, ChoralError, ModelNotFound, NotAudio, WindowFailed


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_clock(0), "0:00"),
        (format_clock(59.6), "1:00"),
        (format_clock(3_723), "1:02:03"),
        (format_speed(0, 1), ""),
        (format_speed(3, 2), "1.5× real time"),
        (format_speed(120, 1), "120× real time"),
        (format_size(999), "1 kB"),
        (format_size(75_572_083), "75.6 MB"),
        (format_size(3_094_000_000), "3.09 GB"),
        (binary_size(999), "999 bytes"),
        (binary_size(2**28), "256 MiB"),
        (binary_size(2**31), "2 GiB"),
        (format_time_left(10, 0), ""),
        (format_time_left(10, 0.25), "0:30 left"),
        (format_time_left(10, 1), ""),
        (shorten("talk.mp3", 8), "talk.mp3"),
        (shorten("a long name.mp3", 10), "a lon….mp3"),
        (shorten("\udcff\n[b].mp3", 20), "��[b].mp3"),
    ],
)
def test_formatting(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([], 0),
        ([NotAudio("x"), AudioEmpty("y")], 3),
        ([WindowFailed("x")], 6),
        ([NotAudio("x"), WindowFailed("y")], 1),
    ],
)
def test_exit_code_of_several_failures(errors: list[ChoralError], code: int) -> None:
    failures = Failures()
    for error in errors:
        failures.report(Failure("a.mp3", error))
    assert failures.exit_code == code


def test_failure_names_its_file_once() -> None:
    assert str(Failure("a.mp3", NotAudio("a.mp3 is not audio"))) == "a.mp3 is not audio"
    assert str(Failure("a.mp3", NotAudio("a.mp3: no decoder"))) == "a.mp3: no decoder"
    assert str(Failure("a.mp3", NotAudio("'a.mp3' does not exist"))) == "'a.mp3' does not exist"
    assert str(Failure("a.mp3", NotAudio("no decoder"))) == "a.mp3: no decoder"
    assert str(Failure("a", NotAudio("an odd file"))) == "a: an odd file"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("né 漢\u3000字.mp3 → a", "né 漢\u3000字.mp3 → a"),
        ("a\nb\tc\r.mp3", r"a\nb\tc\r.mp3"),
        ("\x1b[2Jx\x9b\u202e\udcff", r"\x1b[2Jx\x9b\u202e\udcff"),
    ],
)
def test_control_characters_are_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_only_model_errors_have_several_lines() -> None:
    assert error_lines("x: tried:\n  a", ModelNotFound("")) == ["choral: x: tried:", "  a"]
    assert error_lines("x\ny.mp3: gone", NotAudio("")) == ["choral: x\ny.mp3: gone"]
