"""Runs the examples of docs/server.md, with only the port replaced."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from audio.media_files import encode, read_clip
from serve_process import ServeProcess

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
SENTENCE = "ask not what your country can do for you"


def test_doc_examples_run(shared_server: ServeProcess, jfk: Path, tmp_path: Path) -> None:
    (tmp_path / "talk.mp3").write_bytes(encode(read_clip(jfk), "mp3", "libmp3lame"))

    def example(language: str) -> str:
        found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        assert found
        return found[1].replace("http://127.0.0.1:8000", shared_server.url)

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed = run("bash", "-euc", example("bash").replace("curl ", "curl --silent --show-error --fail "))
    assert printed.count(SENTENCE) >= 6  # json, srt, verbose_json twice, a delta and the whole
    assert "00:00:0" in printed
    assert '"object":"list"' in printed.replace(" ", "")
    assert run(sys.executable, "-c", example("python")).count(SENTENCE) == 2
