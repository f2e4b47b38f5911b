"""What `choral bench prep` measures, on small work: the shape of the results, not their speed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from choral.audio.recording import Recording
from choral.bench import prep_files, prep_overlap
from choral.bench.made_up import FORMATS, Format, sound_bytes
from choral.bench.prep_files import FileSpeed, FilesReport
from choral.cli.main import main


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.suffix)
def test_made_up_sound_in_every_format(form: Format) -> None:
    with Recording.open(sound_bytes(form, 12)) as recording:
        assert recording.duration == pytest.approx(12, abs=0.1)
        assert recording.warnings == ()
        assert recording.peak > 0.1


def test_a_pipeline_keeps_the_engine_busy_and_one_by_one_does_not() -> None:
    body = sound_bytes(FORMATS[-1], 1)
    overlap = prep_overlap.measure_overlap(body, prep_overlap.stand_in(0.2), "a stand-in", download_s=0.3)
    by_name = {line.name: line for line in overlap.timelines}
    assert list(by_name) == ["serial", "micro-batches of 3", "micro-batch of 6", "pipelined"]
    serial, batches, pipelined = by_name["serial"], by_name["micro-batches of 3"], by_name["pipelined"]
    assert serial.wall_s > 6 * (0.3 + 0.2)
    assert serial.wall_s > pipelined.wall_s > 0.3 + 6 * 0.2
    assert serial.idle_share > 0.5
    assert batches.idle_share > pipelined.idle_share
    for line in overlap.timelines:
        assert len(line.prep) == len(line.engine) == 6
        assert all(before.stop_s <= after.start_s for before, after in zip(line.engine, line.engine[1:], strict=False))
    text = prep_overlap.report(overlap)
    assert text.count("█") > 4 * 6
    assert "pipelined: engine idle under 5%: " in text


def test_speed_of_files_with_and_without_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = prep_files.make_files(tmp_path, 3)
    assert [path.suffix for path in paths] == [".mp3", ".m4a", ".flac", ".opus", ".wav"]
    if shutil.which("ffmpeg"):
        measured = prep_files.measure_files(paths[:2], rounds=1)
        assert all(file.choral > 1 and file.ffmpeg is not None and file.ffmpeg > 1 for file in measured.files)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    measured = prep_files.measure_files(paths[2:], rounds=1)
    assert [file.share for file in measured.files] == [None] * 3
    assert measured.keeps_up is None
    text = prep_files.report(measured)
    assert "ffmpeg is not installed here" in text
    assert "at least 0.8 of ffmpeg's speed: not measured here" in text


def test_bars_are_told_apart() -> None:
    fast, slow = FileSpeed("a", 10, 80, 100), FileSpeed("b", 10, 79, 100)
    assert FilesReport((fast,), 1.8, "6").keeps_up
    assert not FilesReport((fast, slow), 1.79, "6").keeps_up
    assert not FilesReport((fast,), 1.79, "6").scales
    assert "b                                          79      100    0.79" in prep_files.report(
        FilesReport((slow,), None, "6")
    )


def test_the_command_ends_with_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(sound_bytes(FORMATS[-1], 2))
    assert main(["bench", "prep", "--files", str(path)]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["benchmark"] == "prep files"
    assert [file["name"] for file in last["files"]] == ["a.wav"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.wav", "b.wav"], "several with --files"),
        (["--download", "0"], "number of seconds"),
        (["--work", "1", "--model", "tiny"], "one of them"),
        (["--files", "no.wav"], "does not exist"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "prep", *arguments]) in (2, 3)
    assert message in capsys.readouterr().err
