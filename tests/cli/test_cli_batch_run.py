"""Runs over many files: a shared engine, bounded parallelism, interrupts and failures."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
import wave
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
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
from choral.options import SubtitleOptions, TranscribeOptions
from speech_files import join_clips
from terminal_screen import COMMAND

Run = Callable[..., Any]
OPTIONS = BatchOptions(TranscribeOptions(), SubtitleOptions(), ("text",), is_quiet=True)
MAX_STOP_S = 20.0  # far below the remaining work, far above what a loaded machine takes to stop


class CountingDisplay:
    """A display that counts how many files run at once."""

    def __init__(self) -> None:
        self.n_running = self.max_running = 0

    def start_file(self, label: str) -> CountingDisplay:
        self.n_running += 1
        self.max_running = max(self.max_running, self.n_running)
        return self

    def finish(self) -> None:
        self.n_running -= 1

    def advance(self, done_s: float, total_s: float) -> None: ...
    def note(self, line: str) -> None: ...

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[package.Model]:
    with package.load(tiny_en_pt, device="cpu", compute_type="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def texts(model: package.Model, speech_clips: list[Path]) -> list[str]:
    """The text of each clip transcribed alone."""
    return [formats.text(model.transcribe(path)) for path in speech_clips]


@pytest.fixture
def talks(speech_clips: list[Path], tmp_path: Path) -> list[Path]:
    """Two files of several minutes of real speech."""
    return [join_clips(speech_clips * 20, tmp_path / name) for name in ("a.wav", "b.wav")]


@pytest.fixture
def silent_pipe() -> Iterator[int]:
    """The read end of a pipe that nothing is written to."""
    reading, writing = os.pipe()
    yield reading
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("max_parallel", [None, 2, 1])
def test_parallel_files_share_the_engine_and_keep_their_texts(
    model: package.Model, texts: list[str], clips: list[Path], tmp_path: Path, max_parallel: int | None
) -> None:
    inputs = expand(map(str, clips)).found
    display = CountingDisplay()
    sink = FileSink(plan_outputs(inputs, tmp_path, ("text",)), ("text",), SubtitleOptions())
    before = model.stats
    executor = RuntimeExecutor(model.runtime(), OPTIONS.options, max_parallel or model.requests_at_once)
    assert BatchRun(executor, sink, display, OPTIONS, Failures()).run(inputs) == 0
    after = model.stats
    assert [(tmp_path / f"{path.stem}.txt").read_text() for path in clips] == texts
    assert display.max_running == min(max_parallel or model.requests_at_once, len(clips))
    assert (after.rows - before.rows > after.steps - before.steps) is (max_parallel != 1)


def test_two_devices_give_the_same_texts(
    choral: Run, clips: list[Path], texts: list[str], tiny_en_pt: Path, tmp_path: Path
) -> None:
    """Two engines on one device stand for two devices."""
    flags = ("--language", "en", "--devices", "cpu,cpu", "--compute-type", "float32", "--output-dir", "out")
    result = choral("transcribe", *clips, "--model", tiny_en_pt, *flags)
    assert result.code == 0
    assert [(tmp_path / "out" / f"{path.stem}.txt").read_text() for path in clips] == texts


def test_bad_device_list_is_refused(choral: Run, clips: list[Path], tiny_en_pt: Path) -> None:
    result = choral("transcribe", clips[0], "--model", tiny_en_pt, "--devices", "0,x")
    assert (result.code, result.out) == (2, "")
    assert "GPU numbers separated by commas" in result.errors


def test_unsupported_options_are_reported_once(choral: Run, clips: list[Path], tiny_en_pt: Path) -> None:
    result = choral("transcribe", *clips, "--model", tiny_en_pt, "--device", "cpu", "--beam-size", "64")
    assert (result.code, result.out) == (2, "")
    assert re.fullmatch(r"choral: 64 beams [^\n]* lower --beam-size or --best-of\n", result.errors)


def test_failures_of_several_kinds_exit_with_1(
    choral: Run, clips: list[Path], tiny_en_pt: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.mp3").write_bytes(b"no sound" * 100)
    (tmp_path / "out/clip1.txt").mkdir(parents=True)
    result = choral("transcribe", *clips[:2], "bad.mp3", "--model", tiny_en_pt, "--output-dir", "out")
    assert result.code == 1
    told = sorted(result.errors.splitlines())
    assert told[0].startswith(f"choral: {clips[1]}: its text went to standard output")
    assert "Is a directory" in told[1]
    assert told[2].startswith("choral: bad.mp3 is not audio")
    assert (tmp_path / "out/clip0.txt").read_text()


@pytest.mark.slow  # on threads; in processes, test_cli_processes
def test_control_c_saves_partial_results_of_every_file(
    terminal: Run, talks: list[Path], tiny_en_pt: Path, tmp_path: Path
) -> None:
    flags = ("--model", tiny_en_pt, "--format", "text,srt", "--mode", "sequential")  # windows end in their order
    run = terminal("transcribe", *(path.name for path in talks), *flags)
    moves = r"^{}\.wav +[━╸╺]+ (1:|0:[1-9])\d* of"
    run.wait_for(lambda screen: all(screen.shows(moves.format(name)) for name in "ab"))
    interrupted_s = time.monotonic()
    run.interrupt()
    assert run.finish() == 130
    assert time.monotonic() - interrupted_s < MAX_STOP_S
    assert run.screen.lines == [
        "choral: stopped; 0 of 2 done; partial results: a.wav in a.partial.txt, .srt, b.wav in b.partial.txt, .srt"
    ]
    for path in talks:
        assert len((tmp_path / f"{path.stem}.partial.txt").read_text().split()) > 3
        assert "-->" in (tmp_path / f"{path.stem}.partial.srt").read_text()


def test_control_c_does_not_wait_for_a_silent_pipe(
    terminal: Run, clips: list[Path], tiny_en_pt: Path, silent_pipe: int, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    run = terminal("transcribe", "clip0.wav", "-", "pipe.wav", "--model", tiny_en_pt, stdin=silent_pipe)
    run.wait_for(lambda screen: screen.shows(r"^clip0\.wav → clip0\.txt") and screen.shows(r"^stdin +[━╸╺]"))
    run.interrupt()
    assert run.finish() == 130
    assert run.screen.lines[1:] == ["choral: stopped; 1 of 3 done"]


def test_bars_fit_on_a_small_screen(terminal: Run, tiny_en_pt: Path, tmp_path: Path) -> None:
    names = [f"{number:02d}.wav" for number in range(20)]
    for name in names:
        os.mkfifo(tmp_path / name)
    run = terminal("transcribe", *names, "--model", tiny_en_pt, "--device", "cpu", height=8)
    run.wait_for(lambda screen: screen.shows(r"^04\.wav") and screen.shows(r"^all files +[━╸╺]+ 0 of 20 done"))
    assert [line[:6] for line in run.screen.lines] == [*names[:5], "all fi"]
    run.interrupt()
    assert run.finish() == 130


def test_full_disk_stops_the_run_and_prints_the_texts(
    clips: list[Path],
    texts: list[str],
    tiny_en_pt: Path,
    tmp_path: Path,
    full_disk: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = expand(map(str, clips)).found
    with package.load(tiny_en_pt, compute_type="float32") as model:
        sink = FileSink(plan_outputs(inputs, tmp_path, ("text",)), ("text",), SubtitleOptions())
        executor = RuntimeExecutor(model.runtime(), OPTIONS.options, len(inputs))
        assert BatchRun(executor, sink, CountingDisplay(), OPTIONS, Failures()).run(inputs) == 5
    shown = capsys.readouterr()
    printed = re.findall(r"choral: (.*): its text went to standard output instead", shown.err)
    assert printed
    rest = shown.out
    for path in map(Path, printed):
        lines = texts[clips.index(path)].splitlines(keepends=True)
        prefixes = ["".join(lines[:n]) for n in range(len(lines), 0, -1)]
        rest = rest.removeprefix(next(text for text in prefixes if rest.startswith(text)))
    assert rest == ""
    assert shown.err.splitlines()[-1] == f"choral: stopped, because no result can be written; 0 of {len(clips)} done"


def test_full_temporary_folder_ends_the_run(clips: list[Path], tiny_en_pt: Path, tmp_path: Path) -> None:
    """With two files in parallel, a recording over half the memory limit goes to a temporary file."""
    with wave.open(str(tmp_path / "long.wav"), "wb") as long:
        long.setparams((1, 2, 16_000, 0, "NONE", ""))
        long.writeframes(bytes(2 * 16_000 * 700))
    command = [*COMMAND, "transcribe", "clip0.wav", "long.wav", "--model", str(tiny_en_pt), "--output-dir", "out"]
    limited = ["sh", "-c", f"ulimit -f 64 && exec {shlex.join(command)}"]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    told, error = done.stderr.splitlines()
    assert re.match(r"choral: stopped; [01] of 2 done", told)
    assert re.match(r"choral: cannot write a temporary file in .* \(File too large\): set TMPDIR to ", error)
