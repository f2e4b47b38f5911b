"""benchmarks/prep_formats.py and prep_overlap.py on small input: the shape of the results, not their speed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import prep_formats
import prep_overlap
from choral.audio.recording import Recording
from choral.bench.synthetic_audio import AUDIO_FORMATS, FileFormat, synthetic_bytes
from prep_formats import FileSpeed, FormatsResult


@pytest.mark.parametrize("form", AUDIO_FORMATS, ids=lambda form: form.suffix)
def test_synthetic_audio_in_every_format(form: FileFormat) -> None:
    with Recording.open(synthetic_bytes(form, 12)) as recording:
        assert recording.duration == pytest.approx(12, abs=0.1)
        assert recording.warnings == ()
        assert recording.peak > 0.1


def test_a_pipeline_keeps_the_engine_busier_than_serial_requests() -> None:
    body = synthetic_bytes(AUDIO_FORMATS[-1], 1)
    overlap = prep_overlap.measure(body, prep_overlap.stand_in(0.2), "a stand-in", download_s=0.3)
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
    paths = prep_formats.make_files(tmp_path, 3)
    assert [path.suffix for path in paths] == [".mp3", ".m4a", ".flac", ".opus", ".wav"]
    if shutil.which("ffmpeg"):
        measured = prep_formats.measure(paths[:2], rounds=1)
        assert all(file.choral > 1 and file.ffmpeg is not None and file.ffmpeg > 1 for file in measured.files)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    measured = prep_formats.measure(paths[2:], rounds=1)
    assert [file.share for file in measured.files] == [None] * 3
    assert measured.keeps_up is None
    text = prep_formats.report(measured)
    assert "ffmpeg is not installed here" in text
    assert "at least 0.8 of ffmpeg's speed: not measured here" in text


def test_targets() -> None:
    fast, slow = FileSpeed("a", 10, 80, 100), FileSpeed("b", 10, 79, 100)
    assert FormatsResult((fast,), 1.8, "6").keeps_up
    assert not FormatsResult((fast, slow), 1.79, "6").keeps_up
    assert not FormatsResult((fast,), 1.79, "6").scales
    assert "b                                          79      100    0.79" in prep_formats.report(
        FormatsResult((slow,), None, "6")
    )


def run_script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"benchmarks/{name}.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_the_script_ends_with_json(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(synthetic_bytes(AUDIO_FORMATS[-1], 2))
    done = run_script("prep_formats", path)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["benchmark"] == "prep files"
    assert [file["name"] for file in last["files"]] == ["a.wav"]


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("prep_overlap", ["--download", "0"], "number of seconds"),
        ("prep_overlap", ["--work", "1", "--model", "tiny"], "one of them"),
        ("prep_formats", ["no.wav"], "does not exist"),
        ("prep", ["no.wav"], "does not exist"),
    ],
)
def test_wrong_arguments(script: str, arguments: list[str], message: str) -> None:
    done = run_script(script, *arguments)
    assert done.returncode in (2, 3)
    assert message in done.stderr
