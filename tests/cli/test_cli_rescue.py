"""Results that cannot be written where they belong, and runs that are asked to stop: nothing heard is lost."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import choral as package
from choral import formats
from choral.cli.batch_run import BatchOptions, BatchRun
from choral.cli.executors import LocalExecutor
from choral.cli.failures import Failures
from choral.cli.inputs import expand
from choral.cli.outputs import FileSink, plan_outputs
from choral.cli.progress import NullDisplay
from choral.types import SubtitleOptions, TranscribeOptions

Run = Callable[..., Any]


@pytest.fixture
def clips(speech_clips: list[Path], tmp_path: Path) -> list[Path]:
    return [Path(shutil.copy(path, tmp_path / f"clip{index}.wav")) for index, path in enumerate(speech_clips[:2])]


def test_one_place_that_cannot_be_written_does_not_stop_the_others(
    choral: Run, clips: list[Path], tiny_en_pt: Path, tmp_path: Path
) -> None:
    (tmp_path / "out/clip0.txt").mkdir(parents=True)
    result = choral("transcribe", *clips, "--model", tiny_en_pt, "--output-dir", "out", "--format", "text,srt")
    with package.load(tiny_en_pt) as model:
        heard = [model.transcribe(path) for path in clips]
    assert result.code == 5
    assert result.out == formats.text(heard[0])
    told, note = result.errors.splitlines()
    assert told == f"choral: {clips[0]}: out/clip0.txt could not be written or read: Is a directory"
    assert note == f"choral: {clips[0]}: its text went to standard output instead"
    assert (tmp_path / "out/clip0.srt").read_text() == formats.srt(heard[0])
    assert (tmp_path / "out/clip1.txt").read_text() == formats.text(heard[1])


def test_a_full_disk_ends_the_run_and_the_text_is_printed(
    clips: list[Path],
    tiny_en_pt: Path,
    tmp_path: Path,
    full_disk: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = expand(map(str, clips)).found
    request = BatchOptions(TranscribeOptions(), SubtitleOptions(), ("text",), is_quiet=False)
    with package.load(tiny_en_pt) as model:
        heard = model.transcribe(clips[0])
        sink = FileSink(plan_outputs(inputs, tmp_path, ("text",)), ("text",), SubtitleOptions())
        assert (
            BatchRun(LocalExecutor(model, request.options, 1), sink, NullDisplay(), request, Failures()).run(inputs)
            == 5
        )
    shown = capsys.readouterr()
    assert shown.out == formats.text(heard)
    told, note, end = shown.err.splitlines()
    assert "the disk is full" in told
    assert "standard output instead" in note
    assert end == "choral: stopped, because no result can be written; 0 of 2 done"


def test_sigterm_keeps_what_was_decided(
    terminal: Run, speech_clips: list[Path], tiny_en_pt: Path, tmp_path: Path
) -> None:
    shutil.copy(speech_clips[0], tmp_path / "a.wav")
    os.mkfifo(tmp_path / "b.wav")  # nobody writes into it: the run waits there
    run = terminal("transcribe", "a.wav", "b.wav", "--model", tiny_en_pt)
    run.wait_for(lambda screen: screen.shows(r"^b\.wav +[━╸╺]") and screen.shows(r"^a\.wav → a\.txt"))
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() == 143
    assert run.screen.lines[-1] == "choral: stopped; 1 of 2 done"
    assert (tmp_path / "a.txt").read_text()
