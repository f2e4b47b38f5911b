"""The wheel in an empty virtual environment, with nothing but its base dependencies: no torch, no extras."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def run(*command: object, cwd: Path, code: int = 0) -> str:
    """Run a command outside the project, so that only installed packages are imported; returns all its output."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=kept, capture_output=True, text=True, timeout=900)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow  # builds a wheel and installs 150 MB
def test_wheel_alone(tmp_path: Path, tiny_en_pt: Path, jfk: Path) -> None:
    run(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    bin_folder = tmp_path / "venv" / "bin"
    run(bin_folder / "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    [wheel] = tmp_path.glob("choral-*.whl")
    run(bin_folder / "pip", "install", "--quiet", wheel, cwd=tmp_path)
    choral, python = bin_folder / "choral", bin_folder / "python"

    assert "Transcribing works here." in run(choral, "doctor", cwd=tmp_path)
    for mode in ("sequential", "batched"):  # with the voice detector's and the tokenizer's files
        text = run(choral, "transcribe", jfk, "--model", tiny_en_pt, "--mode", mode, cwd=tmp_path)
        assert "what you can do for your country" in text
    subtitles = run(choral, "transcribe", jfk, "--model", tiny_en_pt, "--format", "srt", "--quiet", cwd=tmp_path)
    assert subtitles.startswith("1\n00:00:0")
    assert "pip install 'choral[torch]'" in run(
        choral, "transcribe", jfk, "--model", tiny_en_pt, "--engine", "torch", cwd=tmp_path, code=7
    )
    for command, extra in (("serve", "server"), ("worker", "jobs"), ("jobs list", "jobs"), ("bench engine", "bench")):
        assert f"pip install 'choral[{extra}]'" in run(choral, *command.split(), cwd=tmp_path, code=7)

    for code in (
        f"import choral; print(choral.load({str(tiny_en_pt)!r}).transcribe({str(jfk)!r}).text)",
        "from choral.compat import faster_whisper, whisper\n"
        f"print(next(faster_whisper.WhisperModel({str(tiny_en_pt)!r}).transcribe({str(jfk)!r})[0]).text)\n"
        f"print(whisper.load_model({str(tiny_en_pt)!r}).transcribe({str(jfk)!r})['text'])",
    ):
        assert "my fellow Americans" in run(python, "-c", code, cwd=tmp_path)
