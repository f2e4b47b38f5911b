"""Live sessions in processes of their own: the same sessions, quotas, metrics and shutdown; crashes cost few."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from audio.media_files import Int16Samples
from choral.bench.process_tree import process_tree
from choral.server.api_keys import ApiKey, hash_secret, new_secret, write_keys
from realtime_client import FORMATS, TRANSCRIPTION, RealtimeClient, close_code, connect_error, connected, words
from serve_process import ServeProcess, running

SESSIONS, WITHIN_S = 3, 60.0
NULL_TEXT = "every window gets this one sentence"
KEYS = {name: new_secret() for name in ("free", "short")}


@pytest.fixture(scope="module")
def server(tiny_en_pt: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """With two session processes; one key has six seconds of audio a day."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    free = ApiKey(name="free", sha256=hash_secret(KEYS["free"]))
    short = ApiKey(name="short", sha256=hash_secret(KEYS["short"]), audio_minutes_per_day=0.1)
    write_keys(file, [free, short])
    with running(
        "--model", tiny_en_pt, "--api-keys-file", file, "--realtime-sessions", SESSIONS, "--realtime-processes", 2,
        "--processes", 1,
    ) as started:  # fmt: skip
        assert "live sessions run in 2 processes" in started.greeting
        yield started


def bearer(name: str = "free") -> dict[str, dict[str, str]]:
    return {"additional_headers": {"Authorization": f"Bearer {KEYS[name]}"}}


def session_pids(server: ServeProcess) -> list[int]:
    return [child.pid for child in process_tree(server.process.pid)[1:] if "session_process" in command_of(child)]


def command_of(process: psutil.Process) -> str:
    """Empty once it has ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def speak(client: RealtimeClient, clip: Int16Samples) -> str:
    """Send a clip and commit it; the text of its turn."""
    client.configure(format=FORMATS["pcm16"], turn_detection=None)
    client.append_audio(clip.tobytes())
    client.commit()
    return " ".join(words(client.wait_for_text()))


def test_text_metrics_and_the_limit_of_sessions(server: ServeProcess, jfk_samples: Int16Samples) -> None:
    with connected(server.url, **bearer()) as first, connected(server.url, **bearer()) as second:
        assert "ask not what your country can do for you" in speak(first, jfk_samples)
        assert "ask not what your country can do for you" in speak(second, jfk_samples)
        with connected(server.url, **bearer()):
            status, error = connect_error(server.url, **bearer())
            assert (status, error["code"]) == (503, "queue_full")
        assert server_metric(server, "choral_realtime_sessions_open") >= 2
    wait_until(lambda: server_metric(server, "choral_realtime_sessions_open") == 0)
    wait_until(lambda: server_metric(server, "choral_realtime_audio_seconds_total") == pytest.approx(22, abs=0.5))
    wait_until(lambda: server_metric(server, "choral_realtime_completed_seconds_count") == 2)


def server_metric(server: ServeProcess, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", headers=bearer()["additional_headers"]).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if re.match(rf"{name}(\{{|\s)", line))


def test_audio_is_charged_to_the_key(server: ServeProcess) -> None:
    with connected(server.url, **bearer("short")) as client:
        client.append_audio(bytes(2 * 24_000 * 10))  # ten seconds; six are allowed
        error = client.wait_for_error()
        assert "limited to 0.1 minutes of audio in 24 hours" in error["message"]
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
        assert close_code(client) == 1008
    assert connect_error(server.url, **bearer("short"))[0] == 429


def test_session_of_a_client_secret(server: ServeProcess) -> None:
    turn_detection = {"type": "semantic_vad", "eagerness": "high"}
    audio_input = {"format": {"type": "audio/pcmu"}, "turn_detection": turn_detection}
    session = {"type": "transcription", "audio": {"input": audio_input}}
    url, headers = f"{server.url}/v1/realtime/client_secrets", bearer()["additional_headers"]
    created = httpx.post(url, json={"session": session}, headers=headers).raise_for_status().json()
    with connected(server.url, additional_headers={"Authorization": f"Bearer {created['value']}"}) as client:
        found = client.events[0]["session"]["audio"]["input"]
        assert found["format"] == {"type": "audio/pcmu"}
        assert (found["turn_detection"]["type"], found["turn_detection"]["eagerness"]) == ("semantic_vad", "high")
        client.send("no.such.event")
        assert client.wait_for_error()["param"] == "type"


def test_crash_ends_the_sessions_of_its_process_only(server: ServeProcess, jfk_samples: Int16Samples) -> None:
    """Two sessions are in different processes: the other one goes on, and the place of the lost one is free."""
    killed = session_pids(server)[0]
    with connected(server.url, **bearer()) as one, connected(server.url, **bearer()) as other:
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: killed not in session_pids(server) and len(session_pids(server)) == 2)
        lost, alive = (one, other) if has_ended(one) else (other, one)
        error = lost.events[-1]["error"]
        assert error["code"] == "session_process_ended"
        assert "SIGKILL" in error["message"]
        assert close_code(lost) == 1011
        assert "ask not what your country can do for you" in speak(alive, jfk_samples)
        with connected(server.url, **bearer()) as replaced:
            assert "ask not what your country can do for you" in speak(replaced, jfk_samples)


def has_ended(client: RealtimeClient) -> bool:
    """Whether anything arrives: a session in silence sends nothing."""
    try:
        event = json.loads(client.connection.recv(5))
    except TimeoutError:
        return False
    client.events.append(event)
    return True


def test_client_that_leaves_frees_its_place(server: ServeProcess, jfk_samples: Int16Samples) -> None:
    for _ in range(2 * SESSIONS):
        with connected(server.url, **bearer()) as client:
            client.configure(format=FORMATS["pcm16"])
            client.append_audio(jfk_samples.tobytes())
        wait_until(lambda: server_metric(server, "choral_realtime_sessions_open") < SESSIONS)
    wait_until(lambda: server_metric(server, "choral_realtime_sessions_open") == 0)


def test_sigterm_finishes_the_turn(server: ServeProcess, jfk_samples: Int16Samples) -> None:
    """The last test of this server."""
    with connected(server.url, **bearer()) as client:
        client.configure(format=FORMATS["pcm16"], turn_detection={"type": "server_vad", "silence_duration_ms": 1_500})
        client.append_audio(jfk_samples.tobytes())
        client.configure()  # answered once all audio is processed
        server.process.send_signal(signal.SIGTERM)
        assert "ask not what your country can do for you" in " ".join(words(client.wait_for_text()))
        assert client.wait_for_error()["message"] == "the server is shutting down: the session is closed"
        assert close_code(client) == 1001
    assert client.event_types.count(f"{TRANSCRIPTION}.completed") == 1
    assert server.process.wait(20) == 0


@pytest.fixture(scope="module")
def null_server(tiny_en_pt: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """With two models in engines whose text is always the same; the first is never unloaded."""
    other = tmp_path_factory.mktemp("models") / "other.pt"
    other.symlink_to(tiny_en_pt)
    with running(
        "--model", tiny_en_pt, "--model", other, "--pin", tiny_en_pt.name, "--realtime-processes", 1, "--processes", 1,
        program="choral.bench.null_engine_server",
    ) as started:  # fmt: skip
        yield started


def test_sessions_outlive_the_engine(null_server: ServeProcess, jfk_samples: Int16Samples) -> None:
    """When its process was started again, they are connected to the new one."""
    server = null_server
    with connected(server.url) as client:
        before = speak(client, jfk_samples)
        assert before.startswith(NULL_TEXT)
        [engine] = [child for child in process_tree(server.process.pid) if "engine_main" in command_of(child)]
        engine.kill()
        wait_until(lambda: httpx.get(f"{server.url}/health/ready").status_code != 200)
        server.wait_ready()
        wait_until(lambda: speaks_as(client, jfk_samples, before))


def test_sessions_with_another_model_run_in_the_server(null_server: ServeProcess, jfk_samples: Int16Samples) -> None:
    """The session process has the engine of the first model only."""
    query = "?intent=transcription&model=other.pt"
    with connected(null_server.url, query=query, open_timeout=WITHIN_S) as other:  # it is loaded meanwhile
        [killed] = session_pids(null_server)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(set(session_pids(null_server)) - {killed}) == 1)
        assert speak(other, jfk_samples).startswith(NULL_TEXT)
    with connected(null_server.url, open_timeout=WITHIN_S) as first:  # it may wait for the new process
        assert speak(first, jfk_samples).startswith(NULL_TEXT)


def speaks_as(client: RealtimeClient, clip: Int16Samples, text: str) -> bool:
    """Whether a turn gets this text; it fails until the session is connected again."""
    client.append_audio(clip.tobytes())
    client.commit()
    while not (event := client.receive())["type"].startswith(TRANSCRIPTION) or event["type"].endswith(".delta"):
        pass
    return event["type"].endswith(".completed") and " ".join(words(event["transcript"])) == text
