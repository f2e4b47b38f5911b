"""What a user sees in a terminal: progress bars, text segment by segment, and summaries."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import choral as package
from choral import formats
from speech_files import join_clips
from terminal_screen import Screen

Start = Callable[..., Any]
BAR = re.compile(r"[━╸╺].*× real time")
B_MOVES = r"^b\.wav +[━╸╺]+ \d:\d\d of"
FACTS = r"0:\d\d of audio in \d+\.\d s, \d+(\.\d)?× real time, english"


@pytest.fixture(scope="module")
def talk(speech_clips: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several minutes of real speech: the clips repeated."""
    return join_clips(speech_clips * 12, tmp_path_factory.mktemp("talk") / "talk.wav")


@pytest.fixture(scope="module")
def text(tiny_en_pt: Path, speech_clips: list[Path]) -> str:
    with package.load(tiny_en_pt) as model:
        return formats.text(model.transcribe(speech_clips[0]))


def test_bars_are_erased_and_text_and_summary_stay(
    terminal: Start, speech_clips: list[Path], tiny_en_pt: Path, text: str
) -> None:
    run = terminal("transcribe", speech_clips[0], "--model", tiny_en_pt)
    assert run.finish() == 0
    assert "\n".join(run.screen.lines[:-1]) + "\n" == text
    assert re.fullmatch(FACTS, run.screen.lines[-1])
    assert "loading" in run.screen.output
    assert run.screen.output.rindex("\x1b[?25h") > run.screen.output.rindex("\x1b[?25l"), "the cursor is back"


def test_redirected_results_leave_bars_on_the_screen(
    terminal: Start, speech_clips: list[Path], tiny_en_pt: Path, tmp_path: Path, text: str
) -> None:
    with open(tmp_path / "out.txt", "wb") as out:
        run = terminal("transcribe", speech_clips[0], "--model", tiny_en_pt, stdout=out.fileno())
        assert run.finish() == 0
    assert (tmp_path / "out.txt").read_text() == text
    assert len(run.screen.lines) == 1
    assert re.fullmatch(FACTS, run.screen.lines[0])


def test_quiet_prints_only_results(terminal: Start, speech_clips: list[Path], tiny_en_pt: Path, text: str) -> None:
    run = terminal("transcribe", speech_clips[0], "--model", tiny_en_pt, "--quiet")
    assert run.finish() == 0
    assert "\n".join(run.screen.lines) + "\n" == text
    assert "\x1b" not in run.screen.output


def test_several_files_print_one_line_each(
    terminal: Start, speech_clips: list[Path], tiny_en_pt: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(speech_clips[0], folder / "a.wav")
    (folder / "b [bold].mp3").write_bytes(b"no sound" * 100)
    shutil.copy(speech_clips[1], folder / "c [bold].wav")
    run = terminal("transcribe", "in", "--model", tiny_en_pt, "--output-dir", "out", "--format", "text,srt")
    assert run.finish() == 3
    *lines, total = run.screen.lines
    first, third, bad = sorted(lines, key=lambda line: (line.startswith("choral: "), line))
    assert re.fullmatch(rf"a\.wav → out/a\.txt, \.srt: {FACTS}", first)
    assert bad.startswith("choral: in/b [bold].mp3 is ")
    assert re.fullmatch(rf"c \[bold\]\.wav → out/c \[bold\]\.txt, \.srt: {FACTS}", third)
    assert re.fullmatch(r"2 done, 1 failed: 0:\d\d of audio in \d+\.\d s, \d+(\.\d)?× real time", total)
    assert "all files" in run.screen.output


def test_bars_move_below_the_text(terminal: Start, talk: Path, tiny_en_pt: Path) -> None:
    run = terminal("transcribe", talk, "--model", tiny_en_pt)
    run.wait_for(lambda screen: len(screen.lines) > 2 and BAR.search(screen.lines[-1]) is not None)
    assert re.search(r"^talk\.wav [━╸╺]+ \d:\d\d of \d+:\d\d .*× real time \d+:\d\d left$", run.screen.lines[-1])
    assert not any("━" in line for line in run.screen.lines[:-1])
    run.interrupt()
    assert run.finish() == 130
    assert len(run.screen.lines) > 2
    assert run.screen.lines[-1] == "choral: stopped; 0 of 1 done"
    assert not any("━" in line for line in run.screen.lines)


def test_control_c_keeps_finished_and_partial_results(
    terminal: Start, talk: Path, speech_clips: list[Path], tiny_en_pt: Path, tmp_path: Path
) -> None:
    shutil.copy(speech_clips[0], tmp_path / "a.wav")
    shutil.copy(talk, tmp_path / "b.wav")
    flags = ("--model", tiny_en_pt, "--format", "verbose_json", "--mode", "sequential")
    run = terminal("transcribe", "a.wav", "b.wav", *flags)
    run.wait_for(
        lambda screen: screen.lines[:1] and screen.lines[0].startswith("a.wav → a.json") and screen.shows(B_MOVES)
    )
    run.interrupt()
    assert run.finish() == 130
    assert run.screen.lines[-1] == "choral: stopped; 1 of 2 done; partial results: b.wav in b.partial.json"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.wav", "b.partial.json", "b.wav"]
    assert json.loads((tmp_path / "a.json").read_text())["text"]
    part = json.loads((tmp_path / "b.partial.json").read_text())
    assert part["segments"]
    assert part["warnings"] == ["stopped before the end of the audio"]


def test_standard_input_that_is_a_terminal_is_refused(terminal: Start) -> None:
    run = terminal("transcribe", "-")
    assert run.finish() == 2
    assert "standard input is a terminal" in run.screen.lines[0]


def test_screen_of_these_tests_erases_lines() -> None:
    screen = Screen()
    screen.feed("one\r\ntwo\r\x1b[2K\x1b[1A\x1b[2Kthree\x1b[31m!\x1b[0m\r\nfour")
    assert screen.lines == ["three!", "four"]
