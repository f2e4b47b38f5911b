"""`choral bench gpu` without a GPU: its loads, tables and error messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import choral.kernels
from choral.bench import gpu_checks, gpu_load
from choral.bench.gpu_checks import Check, check_windows
from choral.bench.gpu_limits import (
    KERNEL_KINDS,
    HardwareLimits,
    KernelTimes,
    LimitShare,
    StepShare,
    encoder_limit_ms,
    kernel_kind,
    step_limit_ms,
)
from choral.bench.gpu_load import CallersResult, GpuLoadGenerator, GpuLoadResult
from choral.bench.gpu_quality import Quality
from choral.bench.random_model import SHAPES, random_checkpoint
from choral.cli import bench_gpu
from choral.cli.bench_gpu import GpuResult
from choral.cli.main import main
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.gpu_runner import GpuRunner
from choral.errors import UsageError
from choral.model.tokenizer import Tokenizer

SETTINGS = EngineSettings(device="cpu", compute_type="float32", slots=4, encoder_budget=6000)
LOADS = GpuLoadResult(
    (CallersResult(10, 74.32, 131.7, 75.0, 76.9), CallersResult(50, 111.9, 399.2, 140.3, 324.6)), 77.58, 2327.4, 136.0
)


@pytest.fixture(scope="module")
def generator() -> Iterator[GpuLoadGenerator]:
    checkpoint = random_checkpoint("nano")
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims)
    engine = Engine(GpuRunner(checkpoint, tokenizer, SETTINGS), SETTINGS)
    yield GpuLoadGenerator(engine, tokenizer)
    engine.close()


def test_every_load_runs(generator: GpuLoadGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "REQUESTS_OF_CALLERS": {1: 2, 3: 5},
        "SATURATED_WINDOWS": 6,
        "LONG_TOKENS": 5,
        "SHORT_TOKENS": 3,
    }.items():
        monkeypatch.setattr(gpu_load, name, value)
    messages: list[str] = []
    loads = generator.measure(messages.append)
    assert messages == ["one window", "1 callers", "3 callers", "saturated"]
    assert loads.windows_per_s > 0
    assert loads.times_real_time == pytest.approx(30 * loads.windows_per_s)
    assert loads.single_ms > 0
    assert [requests.callers for requests in loads.requests] == [1, 3]
    for requests in loads.requests:
        assert 0 < requests.first_token_p50_ms <= requests.first_token_p95_ms
        assert requests.first_token_p50_ms <= requests.mean_latency_ms * 2


def test_a_load_with_missing_tokens_is_an_error(generator: GpuLoadGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_load, "LONG_TOKENS", 4)
    (window,) = generator.make_windows(1, 30, 3)
    with pytest.raises(AssertionError, match="3 tokens were returned, but 4 were forced"):
        generator.wait_checked(generator._engine.submit(window), 4)


@pytest.mark.slow
def test_check_windows_compares_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here both are the CPU; a window with every kind of option."""
    monkeypatch.setattr(gpu_checks, "N_WINDOWS", len(gpu_checks.OPTIONS))
    tokens, scores = check_windows("cpu")
    assert tokens.holds
    assert scores.holds
    assert not Check("", float("nan"), 1.0).holds


def test_shapes_of_large_models() -> None:
    large, turbo = SHAPES["large-v3"], SHAPES["large-v3-turbo"]
    assert (large.n_audio_layer, large.n_text_layer, large.n_audio_state, large.n_mels) == (32, 32, 1280, 128)
    assert replace(large, n_text_layer=4) == turbo


def test_tables() -> None:
    breakdown = KernelTimes(64, {"cross-attention": 3782.0, "products": 1206.4}, 396)
    step = StepShare("decoder step of 64", 5.94, 4.24, breakdown)
    encoder, whole = (
        LimitShare("encoder, a window of 16", 4.24, 3.56),
        LimitShare("a window of 100 tokens, saturated", 12.2, 10.4),
    )
    result = GpuResult("large-v3", "bfloat16", 5.0, LOADS, encoder, (step,), whole)
    table = bench_gpu.speed_table([result], {"large-v3": 23.8})
    assert table.splitlines()[1].split()[:6] == ["large-v3", "bfloat16", "5.0", "s", "136", "ms"]
    assert table.splitlines()[1].endswith("3.3")
    assert "2,327 ×" in table
    limits = bench_gpu.limits_table(HardwareLimits(4.21, 779.0, 330.0), [result])
    assert "copies 4.21 TB/s" in limits
    assert "84%" in limits
    assert "71%" in limits
    assert "a window of 100 tokens, saturated  12.20 ms      10.40 ms    85%" in limits
    assert "3782" in bench_gpu.kernel_table([result])
    words = bench_gpu.quality_table("tiny.en", [Quality("fp8", "cuda", 40, 30, 37, 11.73)])
    assert "30 of 40" in words
    assert "11.73%" in words


def test_limits_of_encoder_and_decoder_step() -> None:
    """Of large-v3, computed by hand: 3.4 ms to encode, 58 µs to read the keys and values of a row."""
    dims, limits = SHAPES["large-v3"], HardwareLimits(4.25, 780.0, 380.0)
    assert encoder_limit_ms(dims, limits) == pytest.approx(3.4, abs=0.1)
    one, many = (step_limit_ms(dims, limits, n_rows, 0, 2) for n_rows in (1, 257))
    assert (many - one) / 256 == pytest.approx(0.0578, abs=0.0002)
    assert one == pytest.approx(0.43, abs=0.02)


def test_kernel_kinds() -> None:
    names = {
        "_cross_attention": "cross-attention",
        "nvjet_sm90_tst_64x8": "products",
        "_norm": "norms",
        "copy": "other",
    }
    assert {name: kernel_kind(name) for name in names} == names
    kernels = "".join(path.read_text() for path in Path(choral.kernels.__path__[0]).glob("*.py"))
    own = [name for kind in KERNEL_KINDS.values() for name in kind if name.startswith("_")]
    assert [name for name in own if f"def {name}" not in kernels] == []


@pytest.mark.parametrize("names", ["", "large", "large-v3,,x"])
def test_unknown_names_are_rejected(names: str) -> None:
    with pytest.raises(UsageError, match="it takes large-v3"):
        bench_gpu.read_names(names, bench_gpu.LARGE_SHAPES, "--shapes")


def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu", "--device", "cpu"]) == 2
    assert "a GPU that torch can use" in capsys.readouterr().err
