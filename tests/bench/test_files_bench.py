"""`choral bench files`: files on disk through the runtime, with real speech and with random weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def bench(*arguments: object) -> tuple[str, dict[str, object]]:
    command = [sys.executable, "-m", "choral", "bench", "files", *map(str, arguments), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


def test_files_are_transcribed_in_processes(tiny_en_ct2: Path, speech_clips: list[Path]) -> None:
    shown, fields = bench(
        speech_clips[0].parent, "--files", 1, "--minutes", 1, "--processes", 1,
        "--model", tiny_en_ct2, "--engine", "ctranslate2", "--device", "cpu", "--threads", 1,
    )  # fmt: skip
    assert fields["plan"] == "requests run in up to 1 processes: as requested"
    results = fields["results"]
    assert isinstance(results, list)
    assert [result["n_files"] for result in results] == [1]
    for result in results:
        assert 60 * result["n_files"] <= result["audio_s"] < 90 * result["n_files"]
        assert 0 < result["first_text_s"] <= result["wall_s"]
        assert 0 < result["engine_busy"] <= 1.01
        assert result["windows"] >= 2 * result["n_files"]
    assert "engine busy" in shown


@pytest.mark.slow
def test_random_weights_are_compared_with_the_engine_alone(speech_clips: list[Path]) -> None:
    pytest.importorskip("torch")
    shown, fields = bench(
        speech_clips[0].parent, "--files", "2", "--minutes", 1, "--random-weights", "nano", "--device", "cpu",
    )  # fmt: skip
    rate = fields["engine_windows_per_s"]
    assert isinstance(rate, float)
    assert rate > 0
    assert f"the engine alone: {rate:.1f} windows/s" in shown
