"""Results that cannot be written, and SIGTERM: no finished text is lost."""

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
from choral.cli.executors import RuntimeExecutor
from choral.cli.failures import Failures
from choral.cli.inputs import expand
from choral.cli.outputs import FileSink, plan_outputs
from choral.cli.progress import NullDisplay
from choral.options import SubtitleOptions, TranscribeOptions

Run = Callable[..., Any]

FLOAT32 = ("--engine", "torch", "--compute-type", "float32")  # the default depends on the machine


def test_one_unwritable_result_does_not_stop_the_others(
    choral: Run, clips: list[Path], tiny_en_pt: Path, tmp_path: Path
) -> None:
    (tmp_path / "out/clip0.txt").mkdir(parents=True)
    result = choral(
        "transcribe", *clips[:2], "--model", tiny_en_pt, *FLOAT32, "--output-dir", "out", "--format", "text,srt"
    )
    with package.load(tiny_en_pt, engine="torch", compute_type="float32") as model:
        expected = [model.transcribe(path) for path in clips[:2]]
    assert result.code == 5
    assert result.out == formats.text(expected[0])
    told, note = result.errors.splitlines()
    assert told == f"choral: {clips[0]}: out/clip0.txt could not be written or read: Is a directory"
    assert note == f"choral: {clips[0]}: its text went to standard output instead"
    assert (tmp_path / "out/clip0.srt").read_text() == formats.srt(expected[0])
    assert (tmp_path / "out/clip1.txt").read_text() == formats.text(expected[1])


def test_full_disk_ends_the_run_and_prints_the_text(
    clips: list[Path],
    tiny_en_pt: Path,
    tmp_path: Path,
    full_disk: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = expand(map(str, clips[:2])).found
    options = BatchOptions(TranscribeOptions(), SubtitleOptions(), ("text",), is_quiet=False)
    with package.load(tiny_en_pt, compute_type="float32") as model:
        expected = model.transcribe(clips[0])
        sink = FileSink(plan_outputs(inputs, tmp_path, ("text",)), ("text",), SubtitleOptions())
        executor = RuntimeExecutor(model.runtime(), options.options, 1)
        assert BatchRun(executor, sink, NullDisplay(), options, Failures()).run(inputs) == 5
    shown = capsys.readouterr()
    assert shown.out == formats.text(expected)
    told, note, end = shown.err.splitlines()
    assert "the disk is full" in told
    assert "standard output instead" in note
    assert end == "choral: stopped, because no result can be written; 0 of 2 done"


def test_sigterm_keeps_finished_files(
    terminal: Run, speech_clips: list[Path], tiny_en_pt: Path, tmp_path: Path
) -> None:
    shutil.copy(speech_clips[0], tmp_path / "a.wav")
    os.mkfifo(tmp_path / "b.wav")  # without a writer: the run waits there
    run = terminal("transcribe", "a.wav", "b.wav", "--model", tiny_en_pt)
    run.wait_for(lambda screen: screen.shows(r"^b\.wav +[━╸╺]") and screen.shows(r"^a\.wav → a\.txt"))
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() == 143
    assert run.screen.lines[-1] == "choral: stopped; 1 of 2 done"
    assert (tmp_path / "a.txt").read_text()
