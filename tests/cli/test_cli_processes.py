"""`choral transcribe` with request processes: results, failures of single inputs, interrupts, nothing left behind."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import choral as package
from choral import formats
from speech_files import join_clips

Run = Callable[..., Any]


def descendants() -> set[int]:
    """Live processes of this session's tests that run a request process."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
                is_ours = f"CHORAL_TEST={os.environ['CHORAL_TEST']}".encode() in (entry / "environ").read_bytes()
            except OSError:
                continue
            if is_ours and b"request_process" in command:
                found.add(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def marked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHORAL_TEST", str(tmp_path))


def test_texts_warnings_and_failures(choral: Run, clips: list[Path], tiny_en_pt: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.mp3").write_bytes(b"no sound" * 100)
    (tmp_path / "cut.wav").write_bytes(clips[0].read_bytes()[:50_000])
    flags = ("--model", tiny_en_pt, "--device", "cpu", "--processes", "2", "--verbose", "--output-dir", "out")
    exact = ("--compute-type", "float32")
    result = choral("transcribe", *clips[:2], "bad.mp3", "cut.wav", "-", *flags, *exact, stdin=clips[2].read_bytes())
    assert result.code == 3
    lines = result.errors.splitlines()
    assert lines[0].startswith("choral: torch on cpu in float32, threads: ")
    assert lines[1] == "choral: requests run in up to 2 processes: as requested"
    assert sorted(line[:26] for line in lines[2:4]) == ["choral: bad.mp3 is not aud", "choral: cut.wav: warning: "]
    with package.load(tiny_en_pt, device="cpu", compute_type="float32") as model:
        for i, name in enumerate(("clip0", "clip1", "stdin")):
            expected = formats.text(model.transcribe(clips[i]))
            assert (tmp_path / "out" / f"{name}.txt").read_text() == expected
    assert not descendants()


def test_control_c_saves_partial_results_and_leaves_no_process(
    terminal: Run, speech_clips: list[Path], tiny_en_pt: Path, tmp_path: Path
) -> None:
    for name in ("a.wav", "b.wav"):
        join_clips(speech_clips * 20, tmp_path / name)
    # sequential: windows of batched mode end in any order, so some can be done while no segment is
    flags = ("--model", tiny_en_pt, "--device", "cpu", "--processes", "2", "--mode", "sequential")
    run = terminal("transcribe", "a.wav", "b.wav", *flags)
    moves = r"^{}\.wav +[━╸╺]+ (0:[1-9]|[1-9]\d*:)\d* of"
    run.wait_for(lambda screen: all(screen.shows(moves.format(name)) for name in "ab"))
    assert len(descendants()) == 2
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does: to the request processes too
    assert run.finish() == 130
    assert not descendants()
    (line,) = run.screen.lines
    assert re.fullmatch(r"choral: stopped; 0 of 2 done; partial results: a.wav in a.partial.txt, b.wav in .*", line)
    for name in "ab":
        assert len((tmp_path / f"{name}.partial.txt").read_text().split()) > 3
