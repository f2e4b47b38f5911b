"""The README's commands, to the letter, in a fresh copy with a fresh virtual environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import av
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run(script: str, folder: Path, **environment: str) -> str:
    """Run a script that stops at the first failing command; return its output."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("CHORAL_VENV", "PYTHONPATH", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env={**kept, **environment}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def encode(source: Path, target: Path, codec: str) -> None:
    with av.open(str(source)) as given, av.open(str(target), "w") as made:
        stream = made.add_stream(codec, rate=16_000)
        for frame in given.decode(audio=0):
            made.mux(stream.encode(frame))
        made.mux(stream.encode(None))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, jfk: Path) -> Path:
    """A copy of the project's files, with the audio files that the README mentions."""
    folder = tmp_path_factory.mktemp("fresh") / "choral"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    encode(jfk, folder / "talk.mp3", "libmp3lame")
    encode(jfk, folder / "interview.mp4", "aac")
    (folder / "recordings").mkdir()
    shutil.copy(jfk, folder / "recordings" / "speech.wav")
    return folder


def test_readme_commands(copy: Path) -> None:
    demo, install, gate = blocks("bash")
    assert gate.strip() == "scripts/test"
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text()  # CI runs the README's test command

    text = run(demo, copy)
    assert "ask what you can do for your country" in text
    path = f"{copy}/.venv/bin:{os.environ['PATH']}"
    assert "my fellow Americans" in run(install, copy, PATH=path)
    subtitles = (copy / "interview.srt").read_text()
    assert subtitles.startswith("1\n00:00:0")
    assert max(map(len, subtitles.splitlines())) <= 42
    assert sorted(file.suffix for file in (copy / "texts").iterdir()) == [".json", ".srt", ".tsv", ".txt", ".vtt"]

    (copy / "example.py").write_text(blocks("python")[0])
    printed = run("python example.py", copy, PATH=path)
    assert "my fellow Americans" in printed
    assert " --> " in printed

    # A second demo skips the setup and starts the command directly.
    (copy / ".venv" / "bin" / "choral").write_text("#!/bin/sh\necho started\n")
    assert run(demo, copy, PATH="/usr/bin:/bin", PYTHON="/no/python").strip() == "started"
