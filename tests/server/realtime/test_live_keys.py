"""Live sessions of a server with keys: whose they are, what they may send, and their end with the server's."""

from __future__ import annotations

import signal
from pathlib import Path

from audio.media_files import Sound
from choral.server.api_keys import ApiKey, hash_secret, new_secret, write_keys
from live_client import FORMATS, closed, joined, refusal, words
from live_server import LiveServer, running

IDLE_S = 2


def test_keys_their_limits_and_the_end(tiny_en_pt: Path, tmp_path: Path, jfk_sound: Sound) -> None:
    ann, bob, file = new_secret(), new_secret(), tmp_path / "keys.json"
    limited = ApiKey(name="ann", sha256=hash_secret(ann), audio_minutes_per_day=0.1, parallel_requests=1)
    write_keys(file, [limited, ApiKey(name="bob", sha256=hash_secret(bob))])
    flags = ("--api-keys-file", file, "--realtime-idle-s", IDLE_S, "--processes", 1)
    with running("--model", tiny_en_pt, *flags) as server:
        nobody_comes_in_without(server)
        a_browser_sends_its_key_as_a_protocol(server, ann)
        audio_is_charged(server, ann)
        sigterm_finishes_what_was_said(server, bob, jfk_sound)


def nobody_comes_in_without(server: LiveServer) -> None:
    assert refusal(server.url)[1]["code"] == "no_api_key"
    assert refusal(server.url, subprotocols=["realtime", "openai-insecure-api-key.wrong"])[0] == 401
    assert refusal(server.url, additional_headers=bearer("wrong"))[1]["code"] == "invalid_api_key"


def a_browser_sends_its_key_as_a_protocol(server: LiveServer, key: str) -> None:
    protocols = ["realtime", f"openai-insecure-api-key.{key}", "openai-beta.realtime-v1"]
    with joined(server.url, subprotocols=protocols) as client:
        assert client.connection.subprotocol == "realtime"
        assert client.kinds == ["transcription_session.created"]
        assert refusal(server.url, subprotocols=protocols)[0] == 429  # one at a time
        assert client.error()["message"] == f"nothing came for {IDLE_S} s: the session is over"
        assert closed(client) == 1000


def audio_is_charged(server: LiveServer, key: str) -> None:
    with joined(server.url, additional_headers=bearer(key)) as client:
        client.say(bytes(2 * 24_000 * 10))  # ten seconds, and six are allowed
        error = client.error()
        assert "limited to 0.1 minutes of audio in 24 hours" in error["message"]
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
        assert closed(client) == 1008


def sigterm_finishes_what_was_said(server: LiveServer, key: str, sound: Sound) -> None:
    with joined(server.url, additional_headers=bearer(key)) as client:
        client.configure(format=FORMATS["pcm16"], turn_detection={"type": "server_vad", "silence_duration_ms": 1_500})
        client.say(sound.tobytes())
        client.configure()  # all of it was heard when this is answered
        server.process.send_signal(signal.SIGTERM)
        assert "ask not what your country can do for you" in " ".join(words(client.completed()))
        assert client.error()["message"] == "the server is being shut down: the session is over"
        assert closed(client) == 1001
    assert server.process.wait(20) == 0


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
