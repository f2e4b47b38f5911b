"""benchmarks/strategies.py: each strategy returns the right texts, and the script measures them all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from choral.bench.clips import AudioFile
from choral.bench.load_generator import RoundResult
from choral.bench.round_robin import PeerResult
from choral.bench.wer import normaliser, score
from choral.errors import MissingDependency, UsageError
from choral.remote.speech_samples import SpeechSample
from strategies import (
    StageShares,
    StrategySettings,
    require_plot,
    stage_shares,
    strategies,
    strategy_row,
    strategy_table,
)
from support.serving_strategies import BusyTime, Dispatcher, open_server


def settings(model: Path) -> StrategySettings:
    return StrategySettings(model, "cpu", "float32", 2, ("torch", "ctranslate2"), 4)


def test_overlapping_busy_time_counts_once() -> None:
    busy, both, over = BusyTime(), threading.Barrier(2), threading.Barrier(2)

    def other() -> None:
        with busy:
            both.wait()
            over.wait()

    thread = threading.Thread(target=other)
    thread.start()
    started_s = time.perf_counter()
    both.wait()
    with busy:
        time.sleep(0.05)
    assert busy.busy_s == 0.0  # the other one is still busy
    over.wait()
    thread.join()
    assert 0.05 <= busy.busy_s <= time.perf_counter() - started_s + 0.05


def test_dispatcher_batches_what_waits_up_to_its_size() -> None:
    sizes: list[int] = []
    is_taken, may_go = threading.Event(), threading.Event()

    def run_batch(requests: Sequence[AudioFile]) -> Iterator[str]:
        sizes.append(len(requests))
        is_taken.set()
        may_go.wait()
        yield from (request.path.upper() for request in requests)

    dispatcher = Dispatcher(4, run_batch)
    with ThreadPoolExecutor(9) as callers:
        answers = [callers.submit(dispatcher.call, AudioFile("r0", None))]
        is_taken.wait()
        answers += [callers.submit(dispatcher.call, AudioFile(f"r{i}", None)) for i in range(1, 9)]
        while dispatcher._waiting.qsize() < 8:
            time.sleep(0.001)
        may_go.set()
        assert [answer.result() for answer in answers] == [f"R{i}" for i in range(9)]
    assert sizes == [1, 4, 4]


def test_dispatcher_raises_for_a_failed_batch_and_runs_the_next() -> None:
    def run_batch(requests: Sequence[AudioFile]) -> Iterator[str]:
        if requests[0].path == "bad":
            raise UsageError("no")
        yield requests[0].path

    dispatcher = Dispatcher(1, run_batch)
    with pytest.raises(UsageError, match="no"):
        dispatcher.call(AudioFile("bad", None))
    assert dispatcher.call(AudioFile("good", None)) == "good"


@pytest.mark.parametrize("index", [0, 4, *(pytest.param(index, marks=pytest.mark.slow) for index in (1, 2, 3))])
def test_every_strategy_returns_the_text_of_each_request(
    tiny_en_ct2: Path, librivox: tuple[SpeechSample, ...], index: int
) -> None:
    config = strategies(replace(settings(tiny_en_ct2), threads=1))[index]
    run = open_server(config).run([AudioFile(str(sample.path), "en") for sample in librivox])
    scores = [score(sample.text, text, normaliser("en")) for sample, text in zip(librivox, run.texts, strict=True)]
    assert max(own.percent for own in scores) < 35
    assert ("mel_s" in run.internals) == (config.strategy in ("lock", "static"))
    assert 0 <= run.internals["idle_share"] < 0.9


def test_a_row_has_medians_and_percentiles(tmp_path: Path) -> None:
    config = strategies(settings(tmp_path))[0]
    stages = {"mel_s": 1.0, "encoder_s": 2.0, "decoder_s": 5.0}
    rounds = [
        RoundResult(("a", "b"), (0.5, wall_s), wall_s, 1.0, {"idle_share": idle, **stages})
        for wall_s, idle in ((1.0, 0.1), (4.0, 0.3))
    ]
    row = strategy_row(PeerResult(config, [*rounds, rounds[0]], peak_bytes=2_000_000))
    assert (row.requests_per_s, row.p50_s, row.idle_percent) == (2.0, 0.75, pytest.approx(10.0))
    assert row.p95_s == pytest.approx(3.25)
    assert row.stages == StageShares(12.5, 25.0, 62.5)
    assert stage_shares([{"idle_share": 0.1}]) is None
    cells = strategy_table([row]).splitlines()[1].split()
    assert cells[-5:] == ["10.0", "2", "12.5", "25.0", "62.5"]


def test_strategies_share_the_threads(tmp_path: Path) -> None:
    found = {config.strategy or config.engine: config for config in strategies(settings(tmp_path))}
    assert list(found) == ["lock", "threads", "copies", "micro-batch", "static", "torch", "ctranslate2"]
    assert (found["copies"].n_workers, found["micro-batch"].batch_size, found["static"].batch_size) == (2, 6, 16)
    assert {config.threads for config in found.values()} == {2}


def test_plot_path_is_checked_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"such as chart\.png"):
        require_plot(tmp_path / "chart.svg")
    with pytest.raises(UsageError, match="no folder"):
        require_plot(tmp_path / "none" / "chart.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match=r"choral\[bench\]"):
        require_plot(tmp_path / "chart.png")


@pytest.mark.slow
def test_the_script(tmp_path: Path, speech_clips: list[Path], tiny_en_ct2: Path) -> None:
    for path in speech_clips[:2]:
        shutil.copy(path, tmp_path)
    command = [sys.executable, "benchmarks/strategies.py", str(tmp_path), "--model", str(tiny_en_ct2)]
    done = subprocess.run(
        [*command, "--requests", "3", "--callers", "3", "--rounds", "1", "--threads", "1"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    fields = json.loads(done.stdout.splitlines()[-1])
    assert [row["name"] for row in fields["rows"]] == [
        "one request after another",
        "3 threads, one model",
        "2 copies of the model, 1 thread each",
        "micro-batches of 6, then one by one",
        "static batches of 16",
        "Choral, continuous (torch)",
        "Choral, shared batches (ctranslate2)",
    ]
    for row in fields["rows"]:
        assert 0 < row["p50_s"] <= row["p95_s"] <= sum(row["rounds_s"])
        assert row["peak_bytes"] > 50e6
    by_name = {row["name"]: row for row in fields["rows"]}
    assert by_name["2 copies of the model, 1 thread each"]["peak_bytes"] > by_name["3 threads, one model"]["peak_bytes"]
    assert sum(by_name["one request after another"]["stages"].values()) == pytest.approx(100, abs=0.01)
    assert done.stdout.startswith("3 requests from 3 callers")
