"""What a person at a terminal sees: bars while it works, text as it is decided, and lines that stay whole."""

from __future__ import annotations

import json
import re
import shutil
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import choral as package
from choral import formats
from terminal_screen import Screen

Start = Callable[..., Any]
BAR = re.compile(r"[━╸╺].*× real time")
B_MOVES = r"^b\.wav +[━╸╺]+ \d:\d\d of"
FACTS = r"0:\d\d of audio in \d+\.\d s, \d+(\.\d)?× real time, english"


@pytest.fixture(scope="module")
def talk(speech_clips: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real speech of several minutes: the clips over and over."""
    path = tmp_path_factory.mktemp("talk") / "talk.wav"
    with wave.open(str(path), "wb") as joined:
        joined.setparams((1, 2, 16_000, 0, "NONE", ""))
        for clip in speech_clips * 12:
            with wave.open(str(clip), "rb") as file:
                assert file.getparams()[:3] == (1, 2, 16_000)
                joined.writeframes(file.readframes(file.getnframes()))
    return path


@pytest.fixture(scope="module")
def text(tiny_en_pt: Path, speech_clips: list[Path]) -> str:
    with package.load(tiny_en_pt) as model:
        return formats.text(model.transcribe(speech_clips[0]))


def test_text_and_summary_stay_and_bars_go(
    terminal: Start, speech_clips: list[Path], tiny_en_pt: Path, text: str
) -> None:
    run = terminal("transcribe", speech_clips[0], "--model", tiny_en_pt)
    assert run.finish() == 0
    assert "\n".join(run.screen.lines[:-1]) + "\n" == text
    assert re.fullmatch(FACTS, run.screen.lines[-1])
    assert "loading" in run.screen.sent
    assert run.screen.sent.rindex("\x1b[?25h") > run.screen.sent.rindex("\x1b[?25l"), "the cursor is back"


def test_results_in_a_pipe_and_bars_on_the_screen(
    terminal: Start, speech_clips: list[Path], tiny_en_pt: Path, tmp_path: Path, text: str
) -> None:
    with open(tmp_path / "out.txt", "wb") as out:
        run = terminal("transcribe", speech_clips[0], "--model", tiny_en_pt, stdout=out.fileno())
        assert run.finish() == 0
    assert (tmp_path / "out.txt").read_text() == text
    assert len(run.screen.lines) == 1
    assert re.fullmatch(FACTS, run.screen.lines[0])


def test_quiet_shows_results_alone(terminal: Start, speech_clips: list[Path], tiny_en_pt: Path, text: str) -> None:
    run = terminal("transcribe", speech_clips[0], "--model", tiny_en_pt, "--quiet")
    assert run.finish() == 0
    assert "\n".join(run.screen.lines) + "\n" == text
    assert "\x1b" not in run.screen.sent


def test_several_files_each_leave_a_line(
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
    assert "all files" in run.screen.sent


def test_bars_move_below_the_text_as_it_is_decided(terminal: Start, talk: Path, tiny_en_pt: Path) -> None:
    run = terminal("transcribe", talk, "--model", tiny_en_pt)
    run.wait_for(lambda screen: len(screen.lines) > 2 and BAR.search(screen.lines[-1]) is not None)
    assert re.search(r"^talk\.wav [━╸╺]+ \d:\d\d of \d+:\d\d .*× real time \d+:\d\d left$", run.screen.lines[-1])
    assert not any("━" in line for line in run.screen.lines[:-1])
    run.interrupt()
    assert run.finish() == 130
    assert len(run.screen.lines) > 2
    assert run.screen.lines[-1] == "choral: stopped; 0 of 1 done"
    assert not any("━" in line for line in run.screen.lines)


def test_control_c_keeps_what_is_finished(
    terminal: Start, talk: Path, speech_clips: list[Path], tiny_en_pt: Path, tmp_path: Path
) -> None:
    shutil.copy(speech_clips[0], tmp_path / "a.wav")
    shutil.copy(talk, tmp_path / "b.wav")
    run = terminal("transcribe", "a.wav", "b.wav", "--model", tiny_en_pt, "--format", "verbose_json")
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


def test_the_screen_of_these_tests_knows_how_to_erase() -> None:
    screen = Screen()
    screen.feed("one\r\ntwo\r\x1b[2K\x1b[1A\x1b[2Kthree\x1b[31m!\x1b[0m\r\nfour")
    assert screen.lines == ["three!", "four"]
