"""The simulator of many GPUs: it agrees with one that was measured, and loses nothing when some fail."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import pytest

import simulate
from choral.engine.window import Caller
from choral.errors import UsageError
from support.step_costs import H200, read_step_times
from support.virtual_cluster import VirtualClock


@pytest.mark.parametrize("name", ["large-v3 bfloat16", "large-v3 fp8"])
def test_one_gpu_is_within_a_tenth_of_what_was_measured(name: str) -> None:
    for row in simulate.check(H200[name]):
        assert abs(int(row[-1].rstrip("%"))) <= 10, row


def arguments(**changes: object) -> argparse.Namespace:
    values = {
        "gpus": 2,
        "encode_gpus": 0,
        "hand_over_ms": 0.2,
        "routers": 0,
        "seconds": 4.0,
        "warm_up_s": 1.0,
        "rate": 100.0,
        "window_s": 10.0,
        "arrivals": "poisson",
        "tokens": 20,
        "windows": 4,
        "failures_per_hour": 0.0,
        "down_s": 1.0,
        "seed": 1,
    }
    return argparse.Namespace(**(values | changes))


def test_a_light_load_is_served_as_it_comes() -> None:
    result = simulate.run_live(arguments(), H200["large-v3 fp8"])
    assert result.windows_per_s == pytest.approx(100, rel=0.15)
    assert result.p50_s < result.p99_s < 0.2
    assert 0.2 < result.busy_share <= 1.0
    assert result.failures == result.resent == 0


def test_some_gpus_only_encode() -> None:
    result = simulate.run_live(arguments(encode_gpus=1), H200["large-v3 fp8"])
    assert result.windows_per_s == pytest.approx(100, rel=0.15)
    run = simulate.LoadRun(H200["large-v3 fp8"], 2, 1, seed=1, n_encode_gpus=1, hand_over_ms=0.0)
    run.send(20, Caller())
    run.clock.run()
    ((_, latency_s),) = run.ends
    encoder, decoder = run.cluster.gpus
    assert encoder.busy_s == pytest.approx(H200["large-v3 fp8"].encode_s(1))
    assert encoder.busy_s < latency_s <= encoder.busy_s + decoder.busy_s + 1e-9


def test_windows_of_a_gpu_that_fails_end_elsewhere() -> None:
    run = simulate.LoadRun(H200["large-v3 fp8"], 2, 1, seed=1)
    for _ in range(50):
        run.send(20, Caller())
    run.clock.call_at(0.1, lambda: run.cluster.gpus[0].fail(down_s=1.0))
    run.clock.run()
    assert len(run.ends) == 50
    assert 0 < run.cluster.n_resent <= 50
    assert all(host.in_flight == 0 for router in run.cluster.routers for host in router.hosts)


def test_all_gpus_down_is_waited_for() -> None:
    run = simulate.LoadRun(H200["large-v3 fp8"], 1, 1, seed=1)
    run.send(20, Caller())
    run.clock.call_at(0.01, lambda: run.cluster.gpus[0].fail(down_s=3.0))
    run.clock.run()
    ((_, latency_s),) = run.ends
    assert 3.0 < latency_s < 10.0


@pytest.mark.parametrize("kind", simulate.ARRIVALS)
def test_arrivals_have_their_mean(kind: str) -> None:
    times_s = list(simulate.arrival_times(kind, 50.0, 100.0, random.Random(1)))
    assert len(times_s) == pytest.approx(5000, rel=0.06)
    assert times_s == sorted(times_s)


def test_the_clock_calls_in_order() -> None:
    clock, called = VirtualClock(), list[str]()
    clock.call_at(2.0, lambda: called.append("b"))
    clock.call_at(1.0, lambda: called.append("a"))
    clock.call_at(5.0, lambda: called.append("c"))
    clock.run(3.0)
    assert called == ["a", "b"]


def test_step_times_are_read_from_bench_gpu(tmp_path: Path) -> None:
    steps = [{"name": f"decoder step of {rows}", "measured_ms": ms} for rows, ms in ((1, 1.0), (64, 4.0), (256, 10.0))]
    requests = [{"callers": 10, "requests_per_s": 92.0}, {"callers": 50, "requests_per_s": 137.0}]
    result = {
        "shape": "large-v3",
        "compute_type": "fp8",
        "encoder": {"measured_ms": 3.5},
        "steps": steps,
        "loads": {"windows_per_s": 123.0, "requests": requests},
    }
    output = tmp_path / "gpu.txt"
    output.write_text("a table\n" + json.dumps({"results": [result]}) + "\n")
    (times,) = read_step_times(output).values()
    assert times.decode_s(1) == 0.001
    assert times.decode_s(160) == pytest.approx(0.007)
    assert times.decode_s(448) == pytest.approx(0.016)
    assert times.measured == {"windows": 123.0, "10": 92.0, "50": 137.0}
    output.write_text("no JSON")
    with pytest.raises(UsageError, match="bench gpu"):
        read_step_times(output)
