"""Workers that are killed and a Redis that restarts, in small; and the memory of a worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def bench(script: str, *arguments: object) -> tuple[int, dict[str, object], str]:
    command = [sys.executable, f"benchmarks/{script}.py", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout


def folder_of(clips: Sequence[Path], folder: Path) -> Path:
    for clip in clips:
        (folder / clip.name).write_bytes(clip.read_bytes())
    return folder


def test_no_job_is_lost_with_twelve_jobs(
    redis_program: None, tiny_en_ct2: Path, speech_clips: list[Path], tmp_path: Path
) -> None:
    code, report, shown = bench(
        "chaos", folder_of(speech_clips[:3], tmp_path), "--jobs", 12, "--workers", 2, "--kill-every-s", 3,
        "--model", tiny_en_ct2, "--engine", "ctranslate2", "--threads", 1, "--quiet",
    )  # fmt: skip
    tally = report["tally"]
    assert isinstance(tally, dict)
    assert {name: tally[name] for name in ("jobs", "results", "equal", "webhooks", "dead", "redis_restarts")} == {
        "jobs": 12, "results": 12, "equal": 12, "webhooks": 12, "dead": 0, "redis_restarts": 1,
    }  # fmt: skip
    assert tally["kills"] > 0
    assert "nothing was lost" in shown
    assert code == 0


@pytest.mark.slow
def test_no_job_is_lost_with_two_hundred_jobs(
    redis_program: None, tiny_en_pt: Path, speech_clips: list[Path], tmp_path: Path
) -> None:
    code, report, _ = bench("chaos", folder_of(speech_clips, tmp_path), "--model", tiny_en_pt, "--quiet")
    assert (code, report["nothing_lost"]) == (0, True), report


@pytest.mark.slow
def test_a_worker_does_not_grow_over_a_few_jobs(
    redis_program: None, tiny_en_ct2: Path, speech_clips: list[Path], tmp_path: Path
) -> None:
    code, report, shown = bench(
        "worker_memory", folder_of(speech_clips[:2], tmp_path), "--first", 4, "--jobs", 8, "--long-s", 0,
        "--model", tiny_en_ct2, "--engine", "ctranslate2", "--threads", 1, "--quiet",
    )  # fmt: skip
    assert code == 0
    levels = report["levels"]
    assert isinstance(levels, list)
    assert [level["after"] for level in levels] == ["4 short jobs", "8 short jobs"]
    assert "within 10% of the first" in shown


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_worker_does_not_grow_over_a_thousand_jobs_and_an_hour_of_audio(
    redis_program: None, tiny_en_pt: Path, speech_clips: list[Path], tmp_path: Path
) -> None:
    _, report, _ = bench(
        "worker_memory", folder_of(speech_clips, tmp_path), "--jobs", 1000, "--long-s", 3600,
        "--model", tiny_en_pt, "--quiet",
    )  # fmt: skip
    assert abs(float(str(report["ratio"])) - 1) <= 0.1
