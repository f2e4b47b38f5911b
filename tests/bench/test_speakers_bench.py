"""`choral bench speakers`: folders of references, and the command on a real voice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from choral.bench.speaker_corpus import read_speaker_corpus
from choral.cli.main import main
from choral.diarization import SpeakerTurn
from choral.errors import AudioNotFound
from choral.speakers.networks import SpeakerNetworks

LINE = "SPEAKER {uri} 1 {start} {duration} <NA> <NA> {name} <NA> <NA>\n"


def test_references_are_found_by_file_and_by_name(tmp_path: Path) -> None:
    (tmp_path / "one.rttm").write_text(LINE.format(uri="anything", start=0, duration=2, name="a"))
    (tmp_path / "all.rttm").write_text(LINE.format(uri="two", start=1, duration=2, name="b"))
    (tmp_path / "all.uem").write_text("two NA 0 30\n")
    audio = [tmp_path / name for name in ("one.wav", "two.wav", "three.wav")]
    one, two = read_speaker_corpus(tmp_path, audio)
    assert (one.path.name, one.turns, one.scored) == ("one.wav", (SpeakerTurn(0, 2, "a"),), None)
    assert (two.path.name, two.turns, two.scored) == ("two.wav", (SpeakerTurn(1, 3, "b"),), ((0, 30),))
    with pytest.raises(AudioNotFound, match=r"needs an \.rttm beside"):
        read_speaker_corpus(tmp_path, [tmp_path / "three.wav"])


def test_the_command(networks: SpeakerNetworks, jfk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(jfk, tmp_path / "speech.wav")
    (tmp_path / "speech.rttm").write_text(LINE.format(uri="speech", start=0, duration=11, name="kennedy"))
    assert main(["bench", "speakers", str(tmp_path), "--quiet"]) == 0
    *table, line = capsys.readouterr().out.splitlines()
    assert table[0].split()[:3] == ["file", "speakers", "found"]
    assert table[1].split()[:3] == ["speech.wav", "1", "1"]
    fields = json.loads(line)
    assert (fields["benchmark"], fields["n_right"]) == ("speakers", 1)
    (row,) = fields["rows"]
    assert row["confusion_percent"] == row["false_alarm_percent"] == 0
    assert 0 < row["der_percent"] < 40  # his pauses
    assert row["miss_percent"] == pytest.approx(row["der_percent"])
    assert fields["total"]["der_percent"] == row["der_percent"]
    assert main(["bench", "speakers"]) == 2
