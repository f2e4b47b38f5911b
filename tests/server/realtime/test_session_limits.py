"""Realtime sessions with API keys: authentication, limits, charging, idle timeout and shutdown."""

from __future__ import annotations

import signal
from pathlib import Path

from audio.media_files import Int16Samples
from choral.server.api_keys import ApiKey, hash_secret, new_secret, write_keys
from realtime_client import FORMATS, close_code, connect_error, connected, words
from serve_process import ServeProcess, running

IDLE_S = 2


def test_keys_limits_and_shutdown(tiny_en_pt: Path, tmp_path: Path, jfk_samples: Int16Samples) -> None:
    ann, bob, file = new_secret(), new_secret(), tmp_path / "keys.json"
    limited = ApiKey(name="ann", sha256=hash_secret(ann), audio_minutes_per_day=0.1, parallel_requests=1)
    write_keys(file, [limited, ApiKey(name="bob", sha256=hash_secret(bob))])
    flags = ("--api-keys-file", file, "--realtime-idle-s", IDLE_S, "--processes", 1)
    with running("--model", tiny_en_pt, *flags) as server:
        check_key_is_required(server)
        check_key_as_subprotocol_and_idle_timeout(server, ann)
        check_audio_is_charged(server, ann)
        check_sigterm_finishes_the_turn(server, bob, jfk_samples)


def check_key_is_required(server: ServeProcess) -> None:
    assert connect_error(server.url)[1]["code"] == "no_api_key"
    assert connect_error(server.url, subprotocols=["realtime", "openai-insecure-api-key.wrong"])[0] == 401
    assert connect_error(server.url, additional_headers=bearer("wrong"))[1]["code"] == "invalid_api_key"


def check_key_as_subprotocol_and_idle_timeout(server: ServeProcess, key: str) -> None:
    protocols = ["realtime", f"openai-insecure-api-key.{key}", "openai-beta.realtime-v1"]
    with connected(server.url, subprotocols=protocols) as client:
        assert client.connection.subprotocol == "realtime"
        assert client.event_types == ["transcription_session.created"]
        assert connect_error(server.url, subprotocols=protocols)[0] == 429  # one at a time
        assert client.wait_for_error()["message"] == f"no message arrived for {IDLE_S} s: the session is closed"
        assert close_code(client) == 1000


def check_audio_is_charged(server: ServeProcess, key: str) -> None:
    with connected(server.url, additional_headers=bearer(key)) as client:
        client.append_audio(bytes(2 * 24_000 * 10))  # ten seconds; six are allowed
        error = client.wait_for_error()
        assert "limited to 0.1 minutes of audio in 24 hours" in error["message"]
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
        assert close_code(client) == 1008


def check_sigterm_finishes_the_turn(server: ServeProcess, key: str, clip: Int16Samples) -> None:
    with connected(server.url, additional_headers=bearer(key)) as client:
        client.configure(format=FORMATS["pcm16"], turn_detection={"type": "server_vad", "silence_duration_ms": 1_500})
        client.append_audio(clip.tobytes())
        client.configure()  # answered once all audio is processed
        server.process.send_signal(signal.SIGTERM)
        assert "ask not what your country can do for you" in " ".join(words(client.wait_for_text()))
        assert client.wait_for_error()["message"] == "the server is shutting down: the session is closed"
        assert close_code(client) == 1001
    assert server.process.wait(20) == 0


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
