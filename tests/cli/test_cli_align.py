"""`choral align` with a real model and real speech."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import srt

Run = Callable[..., Any]
TEXT = "And so, my fellow Americans: ask not what your country can do for you. Ask what you can do for your country."


def test_subtitles_and_json(choral: Run, jfk: Path, tiny_en_pt: Path, tmp_path: Path) -> None:
    (tmp_path / "speech.txt").write_text(f"\ufeff{TEXT}\n\nThank you all, and good night to everybody.\n")
    flags = ("--model", tiny_en_pt, "--device", "cpu", "--format", "srt,verbose_json", "--output-dir", "out")
    result = choral("align", jfk, "speech.txt", *flags)
    assert result.code == 0, result.errors
    assert "warning: 8 of 30 words of the text were not found in the audio" in result.errors
    cues = list(srt.parse((tmp_path / "out" / "jfk.srt").read_text()))
    assert " ".join(cue.content for cue in cues) == TEXT
    segments = json.loads((tmp_path / "out" / "jfk.json").read_text())["segments"]
    assert [segment["start"] is None for segment in segments] == [False, False, True]


def test_mistakes(choral: Run, jfk: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    for arguments, problem in (
        ([jfk, "missing.txt"], "the text missing.txt cannot be read (No such file or directory)"),
        ([jfk, "empty.txt"], "the text to align is empty"),
        ([jfk, "binary.txt"], "binary.txt is not text in UTF-8"),
        (["-", "-"], "AUDIO and TEXT cannot both be standard input"),
        ([tmp_path, "empty.txt"], "no audio"),
        ([jfk], "the following arguments are required: TEXT"),
    ):
        result = choral("align", *arguments)
        assert result.code in (2, 3), result.errors
        assert problem in result.errors
