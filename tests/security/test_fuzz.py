"""Randomised input for every protocol, with fixed seeds: no internal error, no stall, no growth, good requests succeed.

Run with `scripts/test --slow tests/security/test_fuzz.py`. A failure names the seed and the input that caused it.
"""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import fuzz_inputs
from attack_probe import ProbeReport, memory_bytes, under_attack, wait_until
from choral.jobs import Client, ClientSettings
from choral.jobs.redis_keys import RedisKeys
from serve_process import ServeProcess, running
from support.redis_server import RedisServer
from worker_process import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
Attacked = Callable[..., AbstractContextManager[ProbeReport]]
N_REQUESTS, N_FORMS, N_JSON, N_SESSIONS, N_MESSAGES, N_RECORDS = 800, 600, 800, 60, 25, 400
N_ATTACKERS = 6
REFUSALS = (503, 507)  # the documented ones; a 500 is a defect
CLOSE_CODES = range(1000, 1011)  # of WebSockets; 1011 is an internal error
MAX_GROWTH_BYTES = 150 * 2**20
ROUTES = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/jobs")
Send = Callable[[random.Random], Counter[str]]


def attack_with(send: Send, n_times: int, seed: int) -> Counter[str]:
    """Call `send` with a generator of its own for each number, from several threads; returns what was counted."""
    total: Counter[str] = Counter()
    with ThreadPoolExecutor(N_ATTACKERS) as pool:
        for number, counts in enumerate(pool.map(lambda n: send(random.Random(seed * 1_000_000 + n)), range(n_times))):
            for status in counts:
                code = int(status) if status.isdecimal() else 0
                assert code < 500 or code in REFUSALS or code in CLOSE_CODES, (
                    f"{status} for number {number} of seed {seed}"
                )
            total += counts
    return total


@contextmanager
def unharmed(server: ServeProcess) -> Iterator[None]:
    """The process survives, logs no internal error, does not grow, and is ready afterwards."""
    before, n_logged = memory_bytes(server), len(server.log)
    yield
    assert server.process.poll() is None
    assert not tracebacks(server.log[n_logged:])
    assert httpx.get(f"{server.url}/health/ready").status_code == 200
    time.sleep(2)  # for requests that were cut off to end
    assert memory_bytes(server) - before < MAX_GROWTH_BYTES


def tracebacks(log: str) -> Counter[str]:
    """The errors whose tracebacks are in the log: each is a defect, even if its client got a proper response."""
    return Counter(re.findall(r"^Traceback .*?^(?=\S)(?!Traceback)(.*?)$", log, re.DOTALL | re.MULTILINE))


def warm_up(server: ServeProcess, jfk: Path) -> None:
    """Memory is compared after the first requests, which fill caches."""
    for _ in range(8):
        with jfk.open("rb") as file:
            httpx.post(server.url + ROUTES[0], files={"file": file}, data={"model": "whisper-1"}, timeout=60)


# --- HTTP ---


def test_http_requests(server: ServeProcess, attacked: Attacked, jfk: Path) -> None:
    def send(draw: random.Random) -> Counter[str]:
        data, wait_s = fuzz_inputs.http_request(draw), draw.choice((0.1, 0.3, 3.0))
        return Counter(status.decode() for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", exchange(server, data, wait_s)))

    warm_up(server, jfk)
    with unharmed(server), attacked():
        statuses = attack_with(send, N_REQUESTS, seed=1)
    assert {"200", "400", "404"} <= statuses.keys(), statuses
    print(f"{N_REQUESTS} requests: {dict(statuses)}")


def exchange(server: ServeProcess, data: bytes, wait_s: float) -> bytes:
    """What the server answers within `wait_s`; the connection is then closed."""
    host, port = server.url.removeprefix("http://").split(":")
    answer = b""
    with suppress(OSError), socket.create_connection((host, int(port)), 30) as connection:
        connection.settimeout(wait_s)
        connection.sendall(data)
        while len(answer) < 2**20 and (piece := connection.recv(65_536)):
            answer += piece
    return answer


def test_forms(server: ServeProcess, attacked: Attacked, jfk: Path) -> None:
    def send(draw: random.Random) -> Counter[str]:
        if draw.random() < 0.3:
            content_type, body = "application/x-www-form-urlencoded", fuzz_inputs.urlencoded(draw)
        else:
            content_type, body = fuzz_inputs.multipart(draw)
        return post(server, draw.choice(ROUTES), content_type, body)

    warm_up(server, jfk)
    with unharmed(server), attacked():
        statuses = attack_with(send, N_FORMS, seed=2)
    assert {"200", "202", "400", "415"} <= statuses.keys(), statuses
    print(f"{N_FORMS} forms: {dict(statuses)}")


def test_json_jobs(server: ServeProcess, attacked: Attacked, jfk: Path) -> None:
    def send(draw: random.Random) -> Counter[str]:
        return post(server, "/v1/jobs", "application/json", fuzz_inputs.json_job(draw))

    warm_up(server, jfk)
    with unharmed(server), attacked():
        statuses = attack_with(send, N_JSON, seed=3)
        assert httpx.get(f"{server.url}/v1/jobs?limit=1000", timeout=30).status_code == 200
    assert {"202", "400"} <= statuses.keys(), statuses
    print(f"{N_JSON} JSON jobs: {dict(statuses)}")


def post(server: ServeProcess, path: str, content_type: str, body: bytes) -> Counter[str]:
    headers = {"content-type": content_type.encode("latin-1")}
    try:
        answer = httpx.post(server.url + path, content=body, headers=headers, timeout=60)
    except httpx.WriteError:  # refused before the whole body was sent
        return Counter({"closed": 1})
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert len(answer.content) < 5000, answer.text[:300]
    return Counter({str(answer.status_code): 1})


# --- realtime events ---


def test_realtime_events(server: ServeProcess, attacked: Attacked, jfk: Path) -> None:
    def send(draw: random.Random) -> Counter[str]:
        return session(server, draw)

    warm_up(server, jfk)
    with unharmed(server), attacked():
        events = attack_with(send, N_SESSIONS, seed=4)
        wait_until(lambda: server.metric("choral_realtime_sessions_open") == 0)
    assert {"session.created", "session.updated", "error", "input_audio_buffer.committed"} <= events.keys(), events
    print(f"{N_SESSIONS} sessions with {N_MESSAGES} messages each: {dict(events)}")


def session(server: ServeProcess, draw: random.Random) -> Counter[str]:
    """Counts the events of a session by type; some sessions end without a goodbye."""
    url = f"{server.url.replace('http', 'ws')}/v1/realtime?intent=transcription"
    counts: Counter[str] = Counter()
    try:
        with connect(url, open_timeout=30, close_timeout=5) as connection:
            for _ in range(N_MESSAGES):
                connection.send(fuzz_inputs.realtime_message(draw))
                if draw.random() < 0.3:
                    with suppress(TimeoutError):
                        note_event(json.loads(connection.recv(0.05)), counts)
            with suppress(TimeoutError):
                while True:
                    note_event(json.loads(connection.recv(0.5)), counts)
            if draw.random() < 0.3:
                connection.socket.shutdown(socket.SHUT_RDWR)
    except InvalidStatus as refused:
        counts[str(refused.response.status_code)] += 1
    except ConnectionClosed as closed:
        counts[str(closed.rcvd.code) if closed.rcvd else "cut off"] += 1
    return counts


def note_event(event: dict[str, Any], counts: Counter[str]) -> None:
    counts[event["type"]] += 1
    if event["type"] == "error":
        assert event["error"]["type"] != "server_error", event


# --- records in Redis ---

ADD_JOB = """
local entry = redis.call('XADD', KEYS[1] .. 'queue:' .. ARGV[2], '*', 'id', ARGV[1])
redis.call('HSET', KEYS[1] .. 'job:' .. ARGV[1], 'entry', entry)
redis.call('ZADD', KEYS[1] .. 'index', 1, ARGV[1])
"""


def test_records_in_redis(redis_server: RedisServer, tiny_en_pt: Path, jfk: Path) -> None:
    model = ("--model", tiny_en_pt, "--threads", 1, "--processes", 1)
    worker = WorkerProcess(redis_server.url, *model, "--claim-after-s", 3, "--retry-s", 0.1, "--webhook-retry-s", 0.1)
    try:
        with running(*model, "--redis", redis_server.url) as server, redis.Redis.from_url(redis_server.url) as plain:
            with Client(redis_server.url) as client:
                client.wait(client.submit(jfk))  # the worker has started
            before_bytes = psutil.Process(worker.process.pid).memory_info().rss
            template = record_template(plain, redis_server.url)
            with unharmed(server), under_attack(server, jfk, good="job", good_within_s=60):
                draw = random.Random(5)
                for number in range(N_RECORDS):
                    add_damaged_record(draw, plain, template, f"damaged-{number}")
                    if number % 20 == 0:
                        read_everything(server, number)
                        assert worker.process.poll() is None, worker.log[-3000:]
                read_everything(server, N_RECORDS)
                wait_until(lambda: is_empty(plain), limit_s=120)
            assert worker.process.poll() is None, worker.log[-3000:]
            assert psutil.Process(worker.process.pid).memory_info().rss - before_bytes < MAX_GROWTH_BYTES
        assert not tracebacks(worker.log)
        assert worker.stop() == 0
    finally:
        worker.kill()


def record_template(plain: redis.Redis, url: str) -> dict[bytes, bytes]:
    """The fields of a valid record."""
    with Client(url, ClientSettings(namespace="template")) as client:
        job_id = client.submit(b"not audio, but short", callback="http://127.0.0.1:1/done", language="en")
    fields: dict[bytes, bytes] = plain.hgetall(RedisKeys("template").job(job_id))  # type: ignore[assignment]
    return {
        **fields,
        b"attempts": b"1",
        b"crashes": b"0",
        b"done_s": b"0",
        b"timings": b"{}",
        b"webhook_attempts": b"[]",
    }


def add_damaged_record(draw: random.Random, plain: redis.Redis, template: dict[bytes, bytes], job_id: str) -> None:
    keys, fields = RedisKeys(), dict(template)
    fields[b"request"] = json.dumps({**json.loads(fields[b"request"]), "id": job_id}).encode()
    for _ in range(draw.randint(1, 3)):
        name = draw.choice([b"request", b"request", *template])
        match draw.randrange(4):
            case 0:
                fields.pop(name, None)
            case 1 if name == b"request" and name in fields:
                with suppress(ValueError):
                    fields[name] = fuzz_inputs.damaged_request(draw, fields[name])
            case _:
                fields[name] = fuzz_inputs.damaged(draw, fields.get(name, b""))
    priority = draw.choice(("interactive", "batch"))
    if fields:
        plain.hset(keys.job(job_id), mapping=fields)  # type: ignore[arg-type]
    plain.eval(ADD_JOB, 1, keys.prefix, job_id, priority)
    match draw.randrange(8):
        case 0:
            plain.zadd(keys.single(draw.choice(("webhooks", "delayed", "dead", "expiries"))), {job_id: 1})
        case 1:
            plain.zadd(keys.single(draw.choice(("webhooks", "delayed", "dead", "expiries"))), {draw.randbytes(4): 1})
        case 2:
            entry = {draw.choice((b"id", b"x", b"")): fuzz_inputs.damaged(draw, job_id.encode())}
            plain.xadd(keys.queue("batch"), entry)  # type: ignore[arg-type]
        case 3:
            plain.set(keys.result(job_id), fuzz_inputs.damaged(draw, b'{"v": 1, "segments": []}'))
        case 4:
            ended = {"state": draw.choice(("succeeded", "failed", "dead")), "ended_at": "1", "webhook": "pending"}
            plain.hset(keys.job(job_id), mapping=ended)
            plain.zadd(keys.single("webhooks"), {job_id: 1})


def read_everything(server: ServeProcess, n_records: int) -> None:
    """Nothing that was written makes the server's routes fail."""
    with httpx.Client(base_url=server.url, timeout=30) as http:
        assert http.get("/v1/jobs?limit=1000").status_code == 200
        for number in range(max(0, n_records - 20), n_records):
            for method, path in (("GET", ""), ("GET", "?response_format=srt"), ("DELETE", "")):
                answer = http.request(method, f"/v1/jobs/damaged-{number}{path}")
                assert answer.status_code < 500 or answer.status_code in REFUSALS, answer.text


def is_empty(plain: redis.Redis) -> bool:
    keys = RedisKeys()
    return not any(plain.xlen(keys.queue(priority)) for priority in ("interactive", "batch"))
