"""RTTM and UEM files: written and read back, and what is wrong in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from choral.diarization import Diarization, SpeakerTurn
from choral.errors import UsageError
from choral.speakers.rttm import read_rttm, read_uem, write_rttm


def test_turns_are_read_back(tmp_path: Path) -> None:
    turns = (SpeakerTurn(0.5, 2.25, "Speaker 1"), SpeakerTurn(2, 3, "Zoë"))
    text = write_rttm(Diarization(turns, (), 3), "my talk.mp3")
    assert text.splitlines()[0] == "SPEAKER my_talk.mp3 1 0.500 1.750 <NA> <NA> Speaker_1 <NA> <NA>"
    path = tmp_path / "a.rttm"
    path.write_text(";; a comment\nSPKR-INFO my_talk.mp3 1 <NA> <NA> <NA> unknown Zoë <NA>\n\n" + text)
    expected = [SpeakerTurn(0.5, 2.25, "Speaker_1"), SpeakerTurn(2, 3, "Zoë")]
    assert read_rttm(path) == {"my_talk.mp3": expected}


def test_parts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.uem"
    path.write_text("one NA 0.000 30.000\none NA 40 50\ntwo 1 5 6\n")
    assert read_uem(path) == {"one": [(0, 30), (40, 50)], "two": [(5, 6)]}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("SPEAKER one 1 0.5", "a.rttm line 1 has 4 fields"),
        ("SPEAKER one 1 0.5 x <NA> <NA> a <NA> <NA>", "not numbers: 0.5 x"),
        ("SPEAKER one 1 -0.5 1 <NA> <NA> a <NA> <NA>", "negative or not finite"),
        ("SPEAKER one 1 0.5 nan <NA> <NA> a <NA> <NA>", "negative or not finite"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "a.rttm"
    path.write_text(line)
    with pytest.raises(UsageError, match=complaint):
        read_rttm(path)
    path.write_text("one NA 3")
    with pytest.raises(UsageError, match="line 1 has 3 fields"):
        read_uem(path)
