"""`choral bench engine`: loads on real engines, the reported figures, and wrong arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from choral.bench import engine_load
from choral.bench.engine_load import (
    EngineOverhead,
    LoadResult,
    assign_callers,
    is_flat,
    measure_overhead,
    overhead_share,
)
from choral.bench.random_model import random_engine
from choral.bench.workload import ROTATION, Workload, make_workload, synthetic_workload
from choral.config import EngineSettings
from choral.errors import AudioEmpty, MissingDependency, UsageError


def load_result(windows: int, windows_per_s: float, step_ms: float = 10.0, own_us: float = 100.0) -> LoadResult:
    return LoadResult(
        windows=windows, callers=1, seconds=1.0, cpu_s=1.0, windows_per_s=windows_per_s, audio_s_per_s=1.0, tokens=1,
        encoded=1, cache_hits=0, decoder_steps=1, mean_rows=1.0, rows_at_full=1, step_ms_at_full=step_ms,
        overhead_us_at_full=own_us, schedule_us_at_full=1.0, busy_share=1.0, peak_bytes=1, cache_bytes=1,
    )  # fmt: skip


def choral(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "choral", "bench", "engine", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_throughput_is_flat_if_within_a_tenth_from_64_windows_up() -> None:
    assert is_flat([load_result(1, 1), load_result(64, 10), load_result(128, 9.01)]) is True
    assert is_flat([load_result(64, 10), load_result(128, 8.9), load_result(4096, 10)]) is False
    assert is_flat([load_result(1, 1), load_result(64, 10)]) is None


def test_overhead_share_is_relative_to_a_whole_step() -> None:
    assert load_result(1, 1, step_ms=9.9, own_us=100).overhead_share_at_full == pytest.approx(0.01)
    own = [EngineOverhead(64, 64, 64, step_us=50, schedule_us=1, admit_us=1), EngineOverhead(4096, 1, 64, 500, 1, 1)]
    assert overhead_share([load_result(1, 1, step_ms=2), load_result(64, 1, step_ms=9.5)], own) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("n_windows", "n_callers", "counts"),
    [(4, None, [1, 1, 1, 1]), (4, 9, [1, 1, 1, 1]), (4, 1, [4]), (24, 8, [12, 2, 2, 2, 2, 2, 1, 1]), (5, 2, [2, 3])],
)
def test_assign_callers(n_windows: int, n_callers: int | None, counts: list[int]) -> None:
    callers = assign_callers(n_windows, n_callers)
    assert [callers.count(caller) for caller in dict.fromkeys(callers)] == counts


def test_step_overhead_does_not_grow_with_waiting_windows() -> None:
    """A scheduler that scanned all waiting windows would take 64 times as long."""
    few, many = measure_overhead(64, 64), measure_overhead(4096, 4096)
    assert (few.rows, many.rows) == (64, 64)
    assert many.step_us < 8 * few.step_us
    assert many.admit_us < 8 * few.admit_us


def test_windows_differ_in_content_and_share_memory() -> None:
    (clip,) = synthetic_workload().clips
    workload = Workload("synthetic", (clip, clip[: 16_000 * 2]), is_speech=False)
    windows = [workload.window(number) for number in range(400)]
    assert len({window.key for window in windows}) == 400
    assert windows[2].samples.base is windows[0].samples.base
    np.testing.assert_array_equal(windows[2].samples[:100], windows[0].samples[ROTATION : ROTATION + 100])
    assert [window.samples.size for window in windows[:2]] == [16_000 * 11, 16_000 * 2]


def test_a_long_recording_does_not_repeat() -> None:
    recording = synthetic_workload().long(600)
    assert (str(recording.dtype), recording.size) == ("int16", 600 * 16_000)
    pieces = recording.reshape(10, -1)
    assert len({piece.tobytes() for piece in pieces}) == 10


def test_workload_from_files(speech_clips: list[Path], tmp_path: Path) -> None:
    workload = make_workload([str(path) for path in speech_clips[:2]])
    assert (workload.name, len(workload.clips), workload.is_speech) == ("2 files", 2, True)
    blip = tmp_path / "blip.wav"
    blip.write_bytes(speech_clips[0].read_bytes()[: 44 + 2 * 8_000])
    with pytest.raises(AudioEmpty, match="shorter than a second"):
        make_workload([str(blip)])


def test_random_weights_run_on_torch_alone() -> None:
    with pytest.raises(UsageError, match="use --engine torch"):
        random_engine("nano", EngineSettings(engine="ctranslate2"))


def test_the_command(tmp_path: Path, jfk: Path) -> None:
    trace, picture = tmp_path / "trace.json", tmp_path / "batch.svg"
    done = choral(
        jfk, "--random-weights", "nano", "--windows", "1,20", "--callers", 3, "--max-tokens", 4, "--threads", 1,
        "--trace", trace, "--picture", picture,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    fields = json.loads(done.stdout.splitlines()[-1])
    assert (fields["benchmark"], fields["model"], fields["workload"]) == ("engine", "random nano", str(jfk))
    one, twenty = fields["loads"]
    assert (one["windows"], one["tokens"], one["mean_rows"]) == (1, 4, 1.0)
    assert (twenty["windows"], twenty["callers"], twenty["tokens"]) == (20, 3, 80)
    assert (twenty["encoded"], twenty["cache_hits"]) == (20, 0)
    assert 0 < twenty["busy_share"] <= 1
    assert twenty["peak_bytes"] > twenty["cache_bytes"] > 0
    assert [own["windows"] for own in fields["overheads"]] == [64, 4096, 4096, 4096]
    assert (fields["is_flat"], fields["is_cache_within_budget"]) == (None, True)
    assert "throughput flat within 10% from 64 windows up: not measured here\n" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("20 windows: ")
    stays = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "window"]
    assert len(stays) == 20
    assert "A batch over time: 20 windows of 3 callers (random nano, torch on cpu" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--windows", "0"], "windows is '0'; it must be numbers from 1 to 4096, for example 1,4,16,64,128"),
        (["--windows", "64,many"], "windows is '64,many'"),
        (["--windows", "4097"], "windows is '4097'"),
        (["--callers", "0"], "callers must be a whole number from 1 up"),
        (["--max-tokens", "225"], "max-tokens must be a whole number from 1 to 224"),
        (["--random-weights", "nano", "--model", "tiny.en"], "give --random-weights or --model"),
        (["--random-weights", "huge"], "--random-weights"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    done = choral(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_missing_audio_is_reported_before_the_model_is_loaded() -> None:
    done = choral("no-such.wav", "--model", "no-such-model")
    assert done.returncode == 3
    assert "no-such.wav" in done.stderr


def test_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependency, match=r"pip install 'choral\[bench\]'"):
        engine_load.require_matplotlib()


def test_plot_writes_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    engine_load.plot(
        tmp_path / "p.png", "it", [load_result(1, 1), load_result(64, 5)], [EngineOverhead(64, 64, 64, 50, 1, 1)]
    )
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
