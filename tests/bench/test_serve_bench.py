"""`choral bench serve`: a short comparison and a short soak on real servers, the targets, and wrong flags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from choral.bench import process_tree
from choral.bench.mixed_clients import ClientCounts, extract_text
from choral.bench.null_runner import SERVER_TEXT
from choral.bench.serve_load import ConcurrencyResult, SideResult, check_targets
from choral.bench.server_process import ServerProcess
from choral.bench.soak import ResourceSample, SoakReport, SoakSettings

MB = 10**6


def bench(*arguments: object) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "choral", "bench", "serve", *map(str, arguments), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    return done.returncode, json.loads(lines[-1]), done.stdout


@pytest.fixture
def folder(speech_clips: list[Path], tmp_path: Path) -> Path:
    for path in sorted(speech_clips, key=lambda path: path.stat().st_size)[:2]:
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.mark.slow
def test_server_beside_the_engine(folder: Path, tiny_en_pt: Path) -> None:
    code, report, shown = bench(
        folder, "--model", tiny_en_pt, "--threads", 1, "--concurrency", "1,2", "--requests", 2, "--rounds", 1
    )
    assert code == 0, shown
    for level, n_callers in zip(report["levels"], (1, 2), strict=True):
        assert (level["callers"], level["requests"]) == (n_callers, 2 * n_callers)
        for side in (level["server"], level["engine"]):
            assert side["failures"] == []
            assert 0 < side["p50_s"] <= side["p95_s"] <= side["p99_s"]
            assert side["requests_per_s"] > 0
            assert side["cpu_s"] > 0
        assert level["different_texts"] == 0
        assert level["share"] > 0
        slowest_s = level["server"]["p99_s"] / 0.97  # at most: of four requests, p99 is 0.97 of the way to the last
        assert 0 < level["first_text_p50_s"] <= level["first_text_p95_s"] <= slowest_s
        assert 0 < level["live_p50_s"] <= level["live_p99_s"]
        assert level["live_failures"] == 0
    assert "all texts the same" in shown
    assert "with 32 callers: not measured here" in shown
    assert "every request answered: yes" in shown


def test_server_without_a_model(folder: Path, tiny_en_pt: Path) -> None:
    code, report, shown = bench(
        folder, "--no-model", "--model", tiny_en_pt, "--concurrency", 4, "--requests", 8, "--rounds", 1
    )
    assert code == 0, shown
    (level,) = report["levels"]
    assert level["server"]["failures"] == []
    assert level["server"]["requests_per_s"] > 0
    assert level["engine"] is None
    wrong = subprocess.run(
        [sys.executable, "-m", "choral", "bench", "serve", "--no-model", "--random-weights", "nano"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "choose one of --no-model and --random-weights" in wrong.stderr


@pytest.mark.slow
def test_server_with_random_weights(folder: Path) -> None:
    code, report, shown = bench(
        folder, "--random-weights", "nano", "--threads", 1, "--concurrency", "1,40", "--requests", 2, "--rounds", 1
    )
    assert code == 0, shown
    alone, many = report["levels"]
    assert (alone["requests"], many["requests"]) == (2, 80)  # of 40 callers in two processes
    for level in (alone, many):
        assert level["server"]["failures"] == level["engine"]["failures"] == []
        assert level["share"] > 0
        assert level["different_texts"] is None


def test_server_without_a_model_decodes_audio(tiny_en_pt: Path, jfk: Path, tmp_path: Path) -> None:
    program = "choral.bench.null_runner"
    with ServerProcess([f"--model={tiny_en_pt}"], tmp_path, program) as server, httpx.Client() as client:
        fields = {"model": "whisper-1", "response_format": "verbose_json"}
        url = f"{server.url}/v1/audio/transcriptions"
        answer = client.post(url, data=fields, files={"file": jfk.read_bytes()}).json()
        assert answer["text"] == SERVER_TEXT.strip()
        assert answer["duration"] == pytest.approx(11, abs=0.1)
        assert client.post(url, data=fields, files={"file": b"no sound " * 100}).status_code == 400


@pytest.mark.slow
def test_short_soak(folder: Path, tiny_en_pt: Path) -> None:
    _, fields, shown = bench(folder, "--model", tiny_en_pt, "--threads", 1, "--soak", "4s", "--clients", 4)
    samples = fields["report"]["samples"]
    assert len(samples) == 10
    assert all(sample["memory_bytes"] > 50 * MB and sample["open_files"] > 5 for sample in samples)
    end = fields["report"]["idle_after"]
    assert end["temp_files"] == 0
    assert end["tally"]["failures"] == []
    assert end["tally"]["n_good"] > 10  # the warm-up encoded these
    assert end["tally"]["n_bad_taken"] == end["tally"]["n_changed"] == 0
    for line in ("no valid request failed", "every invalid request was rejected", "no temporary file left"):
        assert f"{line}: yes" in shown


def level(callers: int, share: float | None, live_p99_s: float, *failures: str) -> ConcurrencyResult:
    side = SideResult(1.0, 7.0, 1.0, 2.0, 3.0, 4.0, failures)
    return ConcurrencyResult(
        callers=callers,
        requests=64,
        server=side,
        callers_cpu_s=0.1,
        first_text_p50_s=1.0,
        first_text_p95_s=2.0,
        live_p50_s=0.001,
        live_p99_s=live_p99_s,
        live_failures=0,
        late_p99_s=0.001,
        engine=None if share is None else side,
        share=share,
        different_texts=0,
    )


def test_load_targets() -> None:
    def decided(*levels: ConcurrencyResult) -> list[bool | None]:
        return [holds for _, holds in check_targets(levels)]

    assert decided(level(1, 0.5, 0.01), level(32, 0.9, 0.05)) == [True, True, True]
    assert decided(level(1, 0.99, 0.01), level(32, 0.89, 0.051)) == [False, False, True]
    assert decided(level(32, None, 0.01, "503: full")) == [None, True, False]


def sample(
    at_s: float, megabytes: float = 1000, open_files: int = 80, temp_files: int = 0, **counts: Any
) -> ResourceSample:
    return ResourceSample(at_s, round(megabytes * MB), open_files, temp_files, ClientCounts(**{"n_good": 1, **counts}))


def soak_targets(*samples: ResourceSample, after: ResourceSample | None = None) -> list[bool]:
    report = SoakReport(120.0, samples, sample(0), after or sample(600))
    return [holds for _, holds in report.check_targets()]


def test_soak_targets() -> None:
    flat = [sample(60, 500), *[sample(120)] * 6, *[sample(300, 1049)] * 6, *[sample(600, 951)] * 6]
    assert all(soak_targets(*flat, sample(600, 1049)))
    assert soak_targets(*flat, *[sample(600, 1051)] * 6) == [False, True, True, True, True]
    assert soak_targets(*flat, *[sample(600, 949)] * 6) == [False, True, True, True, True]
    assert all(soak_targets(*flat, *[sample(600)] * 4, sample(600, 2000), sample(600, 2000)))  # for a moment only
    assert soak_targets(*flat, after=sample(600, failures=("no",))) == [True, False, True, True, True]
    assert soak_targets(*flat, after=sample(600, n_good=0)) == [True, False, True, True, True]
    assert soak_targets(*flat, after=sample(600, n_bad_taken=1)) == [True, True, False, True, True]
    assert soak_targets(*flat, after=sample(600, temp_files=1)) == [True, True, True, False, True]
    assert soak_targets(*flat, after=sample(600, open_files=89)) == [True, True, True, True, False]
    growing = [sample(at_s, open_files=80 + at_s) for at_s in range(120, 600, 60)]
    assert soak_targets(*growing) == [True, True, True, True, False]


def test_soak_settings_depend_on_the_duration() -> None:
    assert (SoakSettings(600, 32).settle_s, SoakSettings(600, 32).sample_s, SoakSettings(600, 32).n_files) == (
        120,
        10,
        128,
    )
    assert (SoakSettings(5, 32).settle_s, SoakSettings(5, 32).sample_s, SoakSettings(5, 32).n_files) == (1, 0.5, 10)


def test_extract_text_from_every_format() -> None:
    assert extract_text('{"text": "One."}', {}) == "One."
    assert extract_text("One.\n", {"response_format": "text"}) == "One."
    assert extract_text("1\n00:00:00,000 --> 00:00:01,000\nOne.\n\n", {"response_format": "srt"}) == "One."
    assert extract_text("WEBVTT\n\n00:00.000 --> 00:01.000\nOne.\n\n", {"response_format": "vtt"}) == "One."
    assert extract_text("One.", {"stream": "true"}) == "One."


def test_process_tree(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(0, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(process_tree.process_tree(process.pid)) == 2
        assert 2 * MB < process_tree.memory_bytes(process.pid) < 200 * MB
        assert process_tree.cpu_s(process.pid) > 0
        assert process_tree.n_open_files(process.pid) >= 6
        process.communicate(b"\n")
    assert process_tree.memory_bytes(process.pid) == process_tree.n_open_files(process.pid) == 0
    assert process_tree.n_files_in(os.getpid(), tmp_path) == 0
    with tempfile.TemporaryFile(dir=tmp_path), tempfile.NamedTemporaryFile(dir=tmp_path):
        assert process_tree.n_files_in(os.getpid(), tmp_path) == 2


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--concurrency", "1,none"], "numbers from 1 to 10000"),
        (["--concurrency", "0"], "numbers from 1 to 10000"),
        (["--soak", "soon"], "write 90s, 10m or 1h"),
        (["--soak", "0"], "write 90s, 10m or 1h"),
        (["--soak", "1m", "--url", "http://127.0.0.1:1"], "leave out --url"),
        (["--url", "127.0.0.1:8000"], "must look like http://"),
        (["--clients", "0"], "clients must be a whole number from 1 up"),
    ],
)
def test_wrong_flags(flags: list[str], text: str) -> None:
    command = [sys.executable, "-m", "choral", "bench", "serve", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert text in done.stderr
