"""A real worker with the tiny model: all kinds of audio, failures, cancellation, stopping, outages of Redis."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client
import pytest
import redis as library

import choral
from chaos import is_same_transcript
from choral.bench.clips import read_samples, write_flac
from choral.engine.failure_streak import MAX_FAILURES
from choral.errors import EngineError
from choral.jobs import Client
from choral.jobs.active_job import ActiveJob
from choral.jobs.worker_queue import WorkerQueue
from choral.serving.runtime import Runtime
from choral.serving.settings import ServingSettings
from local_server import LocalServer, serve
from remote.test_ssrf_guard import trickling
from serving.request_faults import decode_with_faults
from support.redis_server import RedisServer
from webhook_receiver import receive_webhooks
from worker_thread import running_worker, wait_until

LONG_S = 300.0


@pytest.fixture(scope="module")
def long_file(folder: Path, jfk: Path) -> Path:
    """Five minutes: it does not finish during a test."""
    samples = np.rint(np.tile(read_samples(jfk), int(LONG_S / 11)) * 32767).astype(np.int16)
    write_flac(folder / "long.flac", samples)
    return folder / "long.flac"


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with serve() as opened:
        yield opened


def test_results_equal_those_of_transcribe_for_every_kind_of_audio(
    client: Client,
    redis_url: str,
    model: choral.Model,
    runtime: Runtime,
    server: LocalServer,
    folder: Path,
    speech_clips: list[Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "choral.jobs")
    clip = speech_clips[0]
    shared = folder / clip.name
    shared.write_bytes(clip.read_bytes())
    server.add("/clip", clip.read_bytes())
    expected = model.transcribe(clip, word_timestamps=True)
    with receive_webhooks() as receiver:
        ids = [
            client.submit(clip, word_timestamps=True, callback=receiver.url),
            client.submit(shared, word_timestamps=True, by_path=True, priority="batch"),
            client.submit(f"{server.url}/clip", word_timestamps=True),
        ]
        with running_worker(redis_url, model, runtime, is_burst=True) as worker:
            worker.join()
        assert all(is_same_transcript(client.result(job_id), expected) for job_id in ids)
        assert [word.text for word in client.result(ids[2]).words] == [word.text for word in expected.words]
        [webhook] = receiver.received
    event = json.loads(webhook.body)
    assert (event["id"], event["status"], event["result"]["text"]) == (ids[0], "succeeded", expected.text)
    record = client.show(ids[2])
    assert client.show(ids[0]).request.audio.kind == ("inline" if clip.stat().st_size <= 100_000 else "blob")
    timings = record.timings
    assert all(spent_s is not None for spent_s in (timings.queued_s, timings.fetch_s, timings.decode_s))
    assert timings.engine_s is not None
    assert timings.engine_s > 0
    assert (record.attempts, record.duration_s) == (1, expected.duration)
    sizes = re.findall(r"batch \d+: size (\d), prep [\d.]+ s, engine [\d.]+ s, succeeded \1", caplog.text)
    assert sum(map(int, sizes)) == 3
    exported = prometheus_client.generate_latest(worker.metrics.registry).decode()
    assert 'choral_jobs_total{state="succeeded"} 3.0' in exported
    assert 'choral_job_phase_seconds_count{phase="engine"} 3.0' in exported
    assert 'choral_webhooks_total{outcome="delivered"} 1.0' in exported


def test_only_retryable_failures_are_retried(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime, server: LocalServer, speech_clips: list[Path]
) -> None:
    server.add("/soon", speech_clips[0].read_bytes(), statuses=[503, 503])
    server.add("/never", b"", statuses=[503] * 9)
    soon, never = client.submit(f"{server.url}/soon"), client.submit(f"{server.url}/never")
    missing, text = client.submit(f"{server.url}/missing"), client.submit(b"this is no audio")
    inside = client.submit("http://169.254.169.254/latest/meta-data")
    path = client.submit("/etc/passwd", by_path=True)
    model_lacks = client.submit(speech_clips[0], language="fr")
    with running_worker(redis_url, model, runtime, is_burst=True, max_attempts=3) as worker:
        worker.join()
    ends = {job_id: client.show(job_id) for job_id in (soon, never, missing, text, inside, path, model_lacks)}
    assert (ends[soon].state, ends[soon].attempts) == ("succeeded", 3)
    assert (ends[never].state, ends[never].attempts, ends[never].error_kind) == ("dead", 3, "FetchFailed")
    for job_id, kind in [
        (missing, "AudioNotFound"),
        (text, "NotAudio"),
        (inside, "AudioRefused"),
        (path, "AudioRefused"),
        (model_lacks, "UsageError"),
    ]:
        assert (ends[job_id].state, ends[job_id].attempts, ends[job_id].error_kind) == ("failed", 1, kind)
    assert [record.id for record in client.dead()] == [never]
    exported = prometheus_client.generate_latest(worker.metrics.registry).decode()
    assert "choral_job_retries_total 4.0" in exported
    assert "choral_dead_letters_total 1.0" in exported


@pytest.mark.parametrize("n_good", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_malicious_jobs_do_not_affect_others(
    client: Client,
    redis_url: str,
    model: choral.Model,
    server: LocalServer,
    folder: Path,
    speech_clips: list[Path],
    n_good: int,
) -> None:
    limits = ServingSettings(
        processes=2,
        roots=(str(folder),),
        allowed_hosts=("127.0.0.1",),
        max_bytes=50_000_000,
        max_audio_s=60.0,
        fetch_timeout_s=2.0,
        decode_timeout_s=2.0,
    )
    clip = speech_clips[0].read_bytes()
    for name in ("segfault", "hang"):
        (folder / f"{name}.wav").write_bytes(clip)
    write_flac(folder / "bomb.flac", np.zeros(3600 * 16000, np.int16))
    assert (folder / "bomb.flac").stat().st_size < 1_000_000
    server.add("/redirect", redirect="http://169.254.169.254/latest/meta-data")
    server.add("/slow", clip, delay_s=60.0)
    malicious = {
        client.submit(folder / "segfault.wav", by_path=True): ("failed", "crashed the decoder"),
        client.submit(folder / "hang.wav", by_path=True): ("failed", "could not be decoded in 2 s"),
        client.submit(folder / "bomb.flac", by_path=True): ("failed", "longer than 60 s"),
        client.submit(f"{server.url}/redirect"): ("failed", "not a host on the public internet"),
        client.submit(f"{server.url}/slow"): ("dead", "took over 2 s"),
    }
    with trickling(b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n") as url:
        malicious[client.submit(url)] = ("failed", "has 10 GiB, the limit is")
        good = [client.submit(clip) for _ in range(n_good)]
        with (
            Runtime.for_service(model.transcriber, limits, 8, decode=decode_with_faults) as faulty,
            running_worker(redis_url, model, faulty, is_burst=True, max_attempts=2) as worker,
        ):
            worker.join()
    expected = model.transcribe(clip)
    assert all(is_same_transcript(client.result(job_id), expected) for job_id in good)
    for job_id, (state, message) in malicious.items():
        record = client.show(job_id)
        assert (record.state, message in str(record.error)) == (state, True), record.error
    assert {client.show(job_id).attempts for job_id in good} == {1}


def test_cancel_reaches_jobs_in_the_engine_and_waiting_for_it(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime, long_file: Path
) -> None:
    running = client.submit(long_file, by_path=True, temperature=0)
    with running_worker(redis_url, model, runtime, batch_size=1):
        wait_until(lambda: client.show(running).done_s > 0)
        assert client.show(running).duration_s == pytest.approx(LONG_S, abs=11)
        second = client.submit(long_file, by_path=True, temperature=0)
        wait_until(lambda: client.show(second).state == "running")
        assert client.cancel(second).is_cancel_requested
        assert client.cancel(running).state == "running"
        wait_until(lambda: {client.show(job_id).state for job_id in (running, second)} == {"cancelled"}, 10)


def test_a_stopped_worker_finishes_jobs_or_puts_them_back(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime, long_file: Path, speech_clips: list[Path]
) -> None:
    short, long = client.submit(speech_clips[0]), client.submit(long_file, by_path=True, temperature=0)
    with running_worker(redis_url, model, runtime, drain_s=0.0) as worker:
        wait_until(lambda: client.show(long).done_s > 0 and client.show(short).state == "succeeded")
        worker.stop()
        worker.join(15)
    record = client.show(long)
    assert (record.state, record.attempts, record.crashes, record.worker) == ("queued", 0, 0, None)
    assert client.workers() == []


def test_a_job_with_a_lost_lease_is_aborted(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime, long_file: Path
) -> None:
    job_id = client.submit(long_file, by_path=True, temperature=0)
    with running_worker(redis_url, model, runtime), library.Redis.from_url(redis_url) as plain:
        wait_until(lambda: client.show(job_id).done_s > 0)
        plain.hset(f"{{choral}}:job:{job_id}", "worker", "other")
        wait_until(lambda: [worker.in_engine for worker in client.workers()] == [0], 10)
        assert client.show(job_id).worker == "other"


@pytest.fixture
def own_redis(redis_program: None, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


def stop(server: RedisServer) -> None:
    server.stop()


def make_replica(server: RedisServer) -> None:
    command(server, "REPLICAOF", "127.0.0.1", "1")


def command(server: RedisServer, *words: str) -> None:
    with library.Redis.from_url(server.url) as plain:
        plain.execute_command(*words)


OUTAGES = {
    "restart": (stop, RedisServer.start, "cannot be reached"),
    "fail-over": (make_replica, lambda server: command(server, "REPLICAOF", "NO", "ONE"), "is a read-only replica"),
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_no_job_is_lost_when_redis_is_unavailable(
    own_redis: RedisServer,
    model: choral.Model,
    runtime: Runtime,
    jfk: Path,
    caplog: pytest.LogCaptureFixture,
    outage: str,
) -> None:
    caplog.set_level(logging.INFO, "choral.jobs")
    begin, end, message = OUTAGES[outage]
    with Client(own_redis.url) as client, running_worker(own_redis.url, model, runtime):
        job_id = client.submit(jfk, temperature=0)
        wait_until(lambda: client.show(job_id).state == "running")
        begin(own_redis)
        wait_until(lambda: message in caplog.text)
        wait_until(lambda: "batch 1: size 1" in caplog.text)  # done, and the outcome cannot be written
        end(own_redis)
        wait_until(lambda: client.show(job_id).state == "succeeded")
        assert is_same_transcript(client.result(job_id), model.transcribe(jfk, temperature=0))
        assert client.show(job_id).attempts == 1
        wait_until(lambda: "Redis is back after" in caplog.text)
        assert caplog.text.count("retrying until it responds") == caplog.text.count("Redis is back after")


def test_a_lost_queue_is_rebuilt(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime, jfk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_worker(redis_url, model, runtime), library.Redis.from_url(redis_url) as plain:
        wait_until(lambda: len(client.workers()) == 1)
        plain.delete("{choral}:queue:interactive")
        job_id = client.submit(jfk, temperature=0)
        assert "country" in client.wait(job_id, timeout_s=30).text
    assert "has been rebuilt" in caplog.text


def test_a_closed_engine_ends_the_worker_and_puts_its_jobs_back(
    client: Client, redis_url: str, tiny_en_ct2: Path, settings: ServingSettings, speech_clips: list[Path]
) -> None:
    with (
        choral.load(str(tiny_en_ct2), engine="ctranslate2", device="cpu", threads=1) as broken,
        Runtime.for_service(broken.transcriber, settings, 1) as runtime,
    ):
        start = runtime.start

        def close_and_start(*arguments: Any) -> Any:
            broken.close()
            return start(*arguments)

        runtime.start = close_and_start  # type: ignore[method-assign]
        job_id = client.submit(speech_clips[0])
        worker = running_worker(redis_url, broken, runtime)
        with pytest.raises(choral.errors.EngineClosed), worker as live:
            live.join()
    record = client.show(job_id)
    assert (record.state, record.attempts, record.crashes) == ("queued", 1, 1)


def break_loop(*_: object) -> None:
    raise RuntimeError("a bug in the engine loop")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_job_that_ends_the_engine_is_dead_after_two_workers(
    client: Client, redis_url: str, tiny_en_pt: Path, settings: ServingSettings, speech_clips: list[Path]
) -> None:
    job_id = client.submit(speech_clips[0])
    for state, crashes in (("queued", 1), ("dead", 2)):
        with (
            choral.load(str(tiny_en_pt), engine="torch", device="cpu", threads=1) as broken,
            Runtime.for_service(broken.transcriber, settings, 1) as runtime,
        ):
            broken._engine._loop.scheduler.update = break_loop  # type: ignore[attr-defined]
            worker = running_worker(redis_url, broken, runtime, max_crashes=2)
            with pytest.raises(choral.errors.EngineClosed), worker as live:
                live.join()
        record = client.show(job_id)
        assert (record.state, record.crashes) == (state, crashes)
    assert [dead.id for dead in client.dead()] == [job_id]


@pytest.mark.parametrize(
    ("method", "name"),
    [("lease_webhooks", "webhook delivery"), ("heartbeat", "the heartbeat"), ("claim", "fetching jobs")],
)
def test_a_loop_that_ends_stops_the_worker(
    client: Client,
    redis_url: str,
    model: choral.Model,
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    long_file: Path,
    method: str,
    name: str,
) -> None:
    job_id = client.submit(long_file, by_path=True, temperature=0)
    original = getattr(WorkerQueue, method)

    async def call(self: WorkerQueue, *arguments: object) -> object:
        if client.show(job_id).done_s > 0:
            raise RuntimeError("a bug")
        return await original(self, *arguments)

    monkeypatch.setattr(WorkerQueue, method, call)
    worker = running_worker(redis_url, model, runtime, drain_s=0.0, claim_after_s=2.0)
    with pytest.raises(choral.errors.EngineError, match=f"{name} has stopped"), worker as live:
        live.join()
    record = client.show(job_id)
    assert (record.state, record.attempts, record.crashes) == ("queued", 0, 0)


def test_an_outcome_that_cannot_be_written_affects_one_job(
    client: Client,
    redis_url: str,
    model: choral.Model,
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    speech_clips: list[Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    original = WorkerQueue.fail

    async def fail(self: WorkerQueue, job: ActiveJob, *arguments: Any) -> str:
        if job.id == "odd":
            raise RuntimeError("a bug")
        return await original(self, job, *arguments)

    monkeypatch.setattr(WorkerQueue, "fail", fail)
    client.submit(b"not audio", job_id="odd")
    good = client.submit(speech_clips[0])
    with running_worker(redis_url, model, runtime):
        assert client.wait(good, timeout_s=60).text
        wait_until(lambda: "the outcome could not be written" in caplog.text)


def test_a_worker_without_redis_stops_on_request(
    own_redis: RedisServer, model: choral.Model, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    own_redis.stop()
    with running_worker(own_redis.url, model, runtime) as worker:
        wait_until(lambda: "retrying until it responds" in caplog.text)
        worker.stop()
        worker.join(15)


@pytest.mark.parametrize("is_lasting", [True, False])
def test_a_device_that_fails_at_everything_ends_the_worker(
    client: Client, redis_url: str, tiny_en_ct2: Path, settings: ServingSettings, jfk: Path, is_lasting: bool
) -> None:
    """Unless a self-test passes: then the jobs were the cause, and the worker goes on."""

    def fail(windows: Sequence[tuple[int, ...]]) -> object:
        is_self_test = all(runner._prefilled[slots[0]].start.params.max_tokens == 2 for slots in windows)
        if is_lasting or not is_self_test:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return decode(windows)

    with (
        choral.load(str(tiny_en_ct2), engine="ctranslate2", device="cpu", threads=1) as broken,
        Runtime.for_service(broken.transcriber, settings, 2) as runtime,
    ):
        runner = broken._engine._loop.runner  # type: ignore[union-attr]
        decode, runner.decode = runner.decode, fail
        job_ids = [client.submit(jfk, temperature=0) for _ in range(2 * MAX_FAILURES)]
        worker = running_worker(redis_url, broken, runtime, batch_size=2, prep_ahead=1, max_attempts=1)
        if is_lasting:
            with pytest.raises(EngineError, match="a self-test failed too"), worker as live:
                live.join()
            records = [client.show(job_id) for job_id in job_ids]
            states = [record.state for record in records]
            assert MAX_FAILURES <= states.count("dead") < MAX_FAILURES + 4
            assert set(states) == {"dead", "queued"}, {record.error for record in records}
        else:
            with worker:
                wait_until(lambda: all(client.show(job_id).state == "dead" for job_id in job_ids))
                runner.decode = decode
                assert "country" in client.wait(client.submit(jfk, temperature=0), timeout_s=60).text
