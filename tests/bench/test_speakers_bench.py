"""`choral bench speakers`: folders of references, and the command on a real voice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from choral.bench.speaker_corpus import read_speaker_corpus
from choral.bench.turns_svg import turns_svg
from choral.cli.main import main
from choral.diarization import SpeakerTurn
from choral.errors import AudioNotFound
from choral.speakers.networks import SpeakerNetworks

SVG = "{http://www.w3.org/2000/svg}"
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


def test_a_picture_has_the_same_colour_for_the_same_speaker() -> None:
    reference = (SpeakerTurn(0, 2, "a & b"), SpeakerTurn(2, 3, "c"))
    found = (SpeakerTurn(0, 0.5, "x"), SpeakerTurn(0.5, 2.2, "y"), SpeakerTurn(2.2, 3, "z"))
    drawing = ElementTree.fromstring(turns_svg(reference, found, 3.0, "<talk>"))
    bars = [element for element in drawing.iter(f"{SVG}rect") if element.find(f"{SVG}title") is not None]
    colours = {bar.findtext(f"{SVG}title", "").partition(":")[0]: bar.get("class") for bar in bars}
    assert colours == {"a & b": "c0", "c": "c1", "x": "s", "y": "c0", "z": "c1"}
    widths = [float(bar.get("width", 0)) for bar in bars]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert turns_svg((), (), 0.0, "").startswith("<svg")


def test_the_command(networks: SpeakerNetworks, jfk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(jfk, tmp_path / "speech.wav")
    (tmp_path / "speech.rttm").write_text(LINE.format(uri="speech", start=0, duration=11, name="kennedy"))
    pictures = tmp_path / "pictures"
    assert main(["bench", "speakers", str(tmp_path), "--pictures", str(pictures), "--quiet"]) == 0
    drawing = ElementTree.parse(pictures / "speech.svg").getroot()
    assert {"kennedy", "Speaker 1"} <= {element.text for element in drawing.iter()}
    *table, line = capsys.readouterr().out.splitlines()
    assert table[0].split()[:3] == ["file", "speakers", "found"]
    assert table[1].split()[:5] == ["speech.wav", "1", "1", "1", "1"]
    fields = json.loads(line)
    assert (fields["benchmark"], fields["n_right"], fields["n_long_right"]) == ("speakers", 1, 1)
    (row,) = fields["rows"]
    assert row["confusion_percent"] == row["false_alarm_percent"] == 0
    assert 0 < row["der_percent"] < 40  # his pauses
    assert row["miss_percent"] == pytest.approx(row["der_percent"])
    assert fields["total"]["der_percent"] == row["der_percent"]
    assert main(["bench", "speakers"]) == 2
