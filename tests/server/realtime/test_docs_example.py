"""Runs the example of docs/realtime.md, with only the port changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from audio.media_files import Int16Samples, encode
from realtime_client import words
from serve_process import ServeProcess

PAGE = (Path(__file__).parents[3] / "docs" / "realtime.md").read_text()


def test_example_runs(realtime_server: ServeProcess, sentences: list[Int16Samples], tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found
    (tmp_path / "talk.wav").write_bytes(encode(sentences[4], "wav", "pcm_s16le", rate=24_000))
    code = found[1].replace("http://127.0.0.1:8000", realtime_server.url)
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert words(done.stdout)[-2:] == ["amiable", "himself"]
