"""Errors of realtime sessions: error events that change nothing, and HTTP errors before the handshake."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import numpy as np

from audio.media_files import Int16Samples
from choral.server.realtime.turn_end import TurnEndDetector
from realtime_client import (
    FORMATS,
    RealtimeClient,
    close_code,
    connect_error,
    connected,
    encode_audio,
    silence,
    words,
)
from serve_process import ServeProcess

BUFFER = "input_audio_buffer"
PHRASE = "ask not what your country can do for you"


def audio(data: bytes) -> str:
    return base64.b64encode(data).decode()


def update(**audio_input: Any) -> dict[str, Any]:
    session = {"type": "transcription", "audio": {"input": audio_input}}
    return {"type": "session.update", "session": session}


INPUT = "session.audio.input"
BAD_EVENTS: list[tuple[dict[str, Any], str | None, str, str]] = [
    ({"type": "response.create"}, "type", "invalid_value", "'response.create'; a transcription session accepts"),
    ({}, "type", "missing_required_parameter", "type is missing"),
    ({"type": 7}, "type", "invalid_value", "a transcription session accepts"),
    ({"type": f"{BUFFER}.append"}, "audio", "missing_required_parameter", "audio is missing"),
    ({"type": f"{BUFFER}.append", "audio": "%%%"}, "audio", "invalid_value", "is not base64"),
    ({"type": f"{BUFFER}.append", "audio": audio(b"abc")}, "audio", "invalid_value", "3 bytes are not a whole number"),
    ({"type": f"{BUFFER}.commit"}, None, "input_audio_buffer_commit_empty", "no speech was detected"),
    ({"type": "session.update"}, "session", "missing_required_parameter", "is missing"),
    ({"type": "session.update", "session": {}}, "session.type", "missing_required_parameter", "is missing"),
    ({"type": "session.update", "session": []}, "session", "invalid_type", "must be an object"),
    ({"type": "session.update", "session": {"type": "realtime"}}, "session.type", "invalid_value", "transcription"),
    (update(format={"type": "audio/opus"}), f"{INPUT}.format.type", "invalid_value", "'audio/pcm', 'audio/pcmu' or"),
    (update(format={"type": "audio/pcm", "rate": 11_025}), f"{INPUT}.format.rate", "invalid_value", "44100 or 48000"),
    (update(format={"type": "audio/pcmu", "rate": 8_000}), f"{INPUT}.format.rate", "unknown_parameter", "not known"),
    (update(format={"type": "audio/pcm", "rate": 0}), f"{INPUT}.format.rate", "invalid_value", "44100 or 48000"),
    (update(transcription={"model": "gpt-4o"}), f"{INPUT}.transcription.model", "model_not_found", "whisper-1"),
    (update(transcription={"language": "fr"}), f"{INPUT}.transcription.language", "invalid_value", "only English"),
    (update(transcription={"language": "xx"}), f"{INPUT}.transcription.language", "invalid_value", "xx"),
    (update(transcription={"prompt": "\ud800"}), f"{INPUT}.transcription.prompt", "invalid_value", "valid string"),
    (update(transcription=None), f"{INPUT}.transcription", "invalid_type", "must be an object"),
    (
        update(transcription={"prompt": "long " * 1_000}),
        f"{INPUT}.transcription.prompt",
        "string_above_max_length",
        "more than 4096 characters",
    ),
    (update(turn_detection={"type": "other_vad"}), f"{INPUT}.turn_detection.type", "invalid_value", "server_vad"),
    (update(transcription={"delay": "long"}), f"{INPUT}.transcription.delay", "invalid_value", "'minimal', 'low'"),
    (update(transcription={"languages": ["xx"]}), f"{INPUT}.transcription.languages", "invalid_value", "xx"),
    (
        update(transcription={"keywords": ["a"] * 300}),
        f"{INPUT}.transcription.keywords",
        "invalid_value",
        "at most 256",
    ),
    (
        update(turn_detection={"type": "server_vad", "threshold": 2}),
        f"{INPUT}.turn_detection.threshold",
        "invalid_value",
        "less than or equal to 1",
    ),
    *(
        (
            update(turn_detection={"type": "server_vad", "threshold": value}),
            f"{INPUT}.turn_detection.threshold",
            "invalid_value",
            "number",
        )
        for value in (True, None, "0.5", float("nan"))
    ),
    (
        update(turn_detection={"type": "server_vad", "silence_duration_ms": 10**400}),
        f"{INPUT}.turn_detection.silence_duration_ms",
        "invalid_value",
        "should be a valid number",
    ),
    (
        {"type": "transcription_session.update", "session": {"input_audio_format": "opus"}},
        "session.input_audio_format",
        "invalid_value",
        "'pcm16', 'g711_ulaw' or 'g711_alaw'",
    ),
]


def test_bad_events_are_error_events_and_change_nothing(session: RealtimeClient, jfk_samples: Int16Samples) -> None:
    for number, (event, param, code, message) in enumerate(BAD_EVENTS):
        session.connection.send(json.dumps({**event, "event_id": f"mine_{number}"}))
        error = session.wait_for_error()
        assert (error["param"], error["code"], error["event_id"]) == (param, code, f"mine_{number}"), error
        assert message in error["message"]
        assert error["type"] == "invalid_request_error"
    for text, message in (
        ("{", "the message is not JSON"),
        ("[" * 9_000, "the message is not JSON"),
        ("[" * 100_000, "more than 10000 values"),
        ("[]", "an event must be an object"),
        ('{"event_id": {}, "type": "input_audio_buffer.clear"}', "event_id must be a string"),
        ('{"event_id": "\\ud800", "type": "x"}', "a transcription session accepts"),
    ):
        session.connection.send(text)
        assert message in session.wait_for_error()["message"]
    session.connection.send(b"\x00\x01")
    assert "not as binary messages" in session.wait_for_error()["message"]
    session.connection.send(json.dumps({"type": f"{BUFFER}.append", "audio": "A" * 250_000}))
    assert "200000 are the maximum" in session.wait_for_error()["message"]

    session.configure(format=FORMATS["pcm16"], turn_detection=None)
    session.append_audio(jfk_samples.tobytes())
    session.commit()
    assert PHRASE in " ".join(words(session.wait_for_text()))


FULL_SESSION = {
    "type": "transcription",
    "include": ["item.input_audio_transcription.logprobs"],
    "tracing": None,
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 16_000},
            "noise_reduction": {"type": "near_field"},
            "transcription": {"model": "gpt-live-transcribe", "language": "en-US", "languages": ["en"], "delay": "low",
                              "keywords": ["Americans"], "prompt": "", "timbre": "dark"},
            "turn_detection": {"type": "semantic_vad", "eagerness": "high", "create_response": True,
                               "interrupt_response": False, "silence_duration_ms": 200},
        }
    },
}  # fmt: skip


def test_options_without_effect_are_warnings(
    turn_end_detector: TurnEndDetector, session: RealtimeClient, jfk_samples: Int16Samples
) -> None:
    """A session with every option of OpenAI's transcribes; each that is not done is named."""
    session.send("session.update", event_id="e1", session=FULL_SESSION)
    updated = session.wait_for("session.updated")["session"]["audio"]["input"]
    assert updated["turn_detection"]["eagerness"] == "high"
    assert updated["transcription"]["keywords"] == ["Americans"]
    session.append_audio(np.concatenate([jfk_samples, silence(1)]).tobytes())
    assert "fellow Americans" in session.wait_for_text()
    warnings = [event["warning"] for event in session.events if event["type"] == "warning"]
    assert {warning["event_id"] for warning in warnings} == {"e1"}
    assert [(warning["param"].removeprefix(f"{INPUT}."), warning["code"]) for warning in warnings] == [
        ("noise_reduction", "unsupported_value"),
        ("transcription.delay", "unsupported_value"),
        ("turn_detection.silence_duration_ms", "unsupported_value"),
        ("turn_detection", "unsupported_value"),
        ("transcription.timbre", "unknown_parameter"),
        ("session.tracing", "unknown_parameter"),
    ]


def test_format_cannot_change_during_a_turn(session: RealtimeClient) -> None:
    session.configure(format=FORMATS["pcm16"], turn_detection=None)
    session.append_audio(silence(0.05).tobytes())
    session.commit()
    assert "the buffer has 50 ms of audio, and a turn needs at least 100 ms" in session.wait_for_error()["message"]
    session.connection.send(json.dumps(update(format=FORMATS["pcmu"])))
    assert session.wait_for_error()["code"] == "input_audio_buffer_not_empty"
    session.send(f"{BUFFER}.clear")
    session.wait_for(f"{BUFFER}.cleared")
    session.commit()
    assert "the buffer has 0 ms of audio" in session.wait_for_error()["message"]
    session.configure(format=FORMATS["pcmu"])


def test_audio_beyond_the_buffer_limit_is_rejected(session: RealtimeClient, jfk_samples: Int16Samples) -> None:
    """Audio before the first speech of a turn makes room for more."""
    session.configure(format=FORMATS["pcmu"], turn_detection=None)
    for _ in range(8):
        session.send(f"{BUFFER}.append", audio=audio(b"\xff" * 80_000))
    session.commit()
    assert session.wait_for_text() == ""
    assert session.events[-1]["usage"]["seconds"] == 80
    speech = encode_audio(jfk_samples, "pcmu")
    for _ in range(5):
        session.append_audio(speech, chunk_bytes=80_000)
    session.send(f"{BUFFER}.append", audio=audio(b"\xff" * 60_000))
    assert "55.0 s of audio are waiting, so these 7.5 s were not accepted" in session.wait_for_error()["message"]


def test_message_of_twice_the_limit_closes_the_session(session: RealtimeClient) -> None:
    session.connection.send("A" * 500_000)
    assert close_code(session) == 1009


def test_bad_connection_requests_are_http_errors(realtime_server: ServeProcess) -> None:
    url = realtime_server.url
    assert connect_error(url, "?intent=conversation")[1]["param"] == "intent"
    status, error = connect_error(url, "?intent=transcription&model=gpt-4o")
    assert (status, error["code"]) == (404, "model_not_found")
    status, error = connect_error(url, origin="https://evil.example")
    assert (status, error["code"]) == (403, "origin_not_allowed")
    with connected(url, "?intent=transcription&model=whisper-1", origin=url):  # this server's own page
        pass


def test_number_of_sessions_is_limited(realtime_server: ServeProcess) -> None:
    clients: list[Any] = []
    deadline_s = time.monotonic() + 10
    while realtime_server.metric("choral_realtime_sessions_open"):
        assert time.monotonic() < deadline_s
    try:
        for _ in range(8):
            clients.append(connected(realtime_server.url))
            clients[-1].__enter__()
        status, error = connect_error(realtime_server.url)
        assert (status, error["code"]) == (503, "queue_full")
        assert "8 realtime sessions are already in progress" in error["message"]
    finally:
        for client in clients:
            client.__exit__(None, None, None)
