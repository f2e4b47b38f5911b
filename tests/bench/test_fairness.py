"""benchmarks/fairness.py: its bound, a run on a small real engine, and wrong arguments."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from choral.bench.random_model import SHAPES, random_engine
from choral.bench.workload import synthetic_workload
from choral.config import EngineSettings
from choral.errors import UsageError
from choral.longform.transcriber import Transcriber
from choral.model.tokenizer import Tokenizer
from fairness import FairnessBench, FairnessResult, Latencies


def latencies(*seconds: float, longest_step_s: float = 0.25) -> Latencies:
    return Latencies(seconds, longest_step_s, "Encode")


def test_the_bound_is_two_and_a_half_times_idle_and_one_step() -> None:
    measured = FairnessResult(idle=latencies(0.9, 1.0, 4.0), fair=latencies(1.0, 2.75), first_come=latencies(60.0))
    assert measured.bound_s == 2.75
    assert measured.holds
    assert not FairnessResult(measured.idle, latencies(1.0, 1.0, 2.76), measured.first_come).holds


@pytest.fixture
def bench() -> Iterator[FairnessBench]:
    """One layer with random weights, and a few tokens per window."""
    settings = EngineSettings(threads=1, device="cpu")
    engine, dims = random_engine("nano", settings), SHAPES["nano"]
    transcriber = Transcriber(engine, Tokenizer.for_checkpoint(dims), dims)
    yield FairnessBench(engine, transcriber, synthetic_workload(), max_tokens=4)
    engine.close()


def test_a_clip_beside_a_file_is_faster_than_first_come_first_served(bench: FairnessBench) -> None:
    measured = bench.measure(n_clips=3, file_s=6000)
    assert [len(one.seconds) for one in (measured.idle, measured.fair, measured.first_come)] == [3, 3, 1]
    assert measured.idle.median_s < measured.first_come.median_s
    assert measured.fair.worst_s < measured.first_come.median_s
    assert 0 < measured.fair.longest_step_s < measured.first_come.median_s
    assert measured.fair.longest_step in ("Encode", "Prefill", "Decode")
    assert bench._engine.stats.cache_hits == 0


def test_the_file_is_cancelled_after_the_measurement(bench: FairnessBench) -> None:
    bench.measure(n_clips=1, file_s=18_000)  # 600 windows, twice
    deadline_s = time.monotonic() + 30
    while bench._engine.stats.waiting and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert bench._engine.stats.waiting == 0
    assert bench._engine.stats.encoded < 600


def test_a_file_that_is_too_short_is_an_error(bench: FairnessBench) -> None:
    with pytest.raises(UsageError, match="make it longer with --file-s"):
        bench.measure(n_clips=30, file_s=60)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--sends", "0"], 2, "sends must be a whole number from 1 up"),
        (["--file-s", "5"], 2, "file-s must be from 60 to 36000 seconds"),
        (["no-such.wav"], 3, "no-such.wav"),
    ],
)
def test_wrong_arguments(arguments: list[str], code: int, message: str) -> None:
    command = [sys.executable, "benchmarks/fairness.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
