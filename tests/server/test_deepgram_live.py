"""Deepgram's live protocol with its official client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepgram import DeepgramClient
from deepgram.environment import DeepgramClientEnvironment
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from media_files import read_clip
from realtime_client import silence, words
from serve_process import ServeProcess

pytestmark = pytest.mark.filterwarnings("ignore:websockets.* is deprecated:DeprecationWarning")  # in the client
CHUNK = 3_200
RAW = "encoding=linear16&sample_rate=16000"


def client_of(server: ServeProcess) -> DeepgramClient:
    address = server.url.replace("http://", "ws://")
    environment = DeepgramClientEnvironment(base=server.url, production=address, agent=address, agent_rest=server.url)
    return DeepgramClient(api_key="any", environment=environment)


def stream(connection: Any, samples: np.ndarray[Any, Any]) -> None:
    for start in range(0, samples.size, CHUNK):
        connection.send_media(samples[start : start + CHUNK].tobytes())


def test_official_client_gets_results_events_and_metadata(shared_server: ServeProcess, jfk: Path) -> None:
    speech = np.concatenate([read_clip(jfk), silence(2.5)])
    with client_of(shared_server).listen.v1.connect(
        model="nova-3", language="en", encoding="linear16", sample_rate="16000", interim_results="true",
        endpointing="500", utterance_end_ms="1500", vad_events="true", smart_format="true",
    ) as connection:  # fmt: skip
        stream(connection, speech)
        connection.send_keep_alive()
        stream(connection, silence(1))
        received: list[Any] = []
        while not received or received[-1].type != "UtteranceEnd":
            received.append(connection.recv())
            if received[-1].type == "Results" and received[-1].is_final:
                stream(connection, silence(1))  # the audio goes on
        connection.send_close_stream()
        while received[-1].type != "Metadata":
            received.append(connection.recv())
        with pytest.raises(ConnectionClosed) as ended:
            connection.recv()
    assert ended.value.rcvd is not None
    assert ended.value.rcvd.code == 1000
    finals = [message for message in received if message.type == "Results" and message.is_final]
    text = " ".join(message.channel.alternatives[0].transcript for message in finals)
    assert "what you can do for your country" in " ".join(words(text))
    assert all(message.speech_final and not message.from_finalize for message in finals)
    first = finals[0].channel.alternatives[0].words
    assert first[0].punctuated_word
    assert 0 <= first[0].start < first[-1].end <= 12
    kinds = [message.type for message in received]
    assert kinds.index("SpeechStarted") < kinds.index("Results") < kinds.index("UtteranceEnd")
    metadata = received[-1]
    assert metadata.duration >= 14.5
    assert len(metadata.sha256) == 64


def test_finalize_gives_the_text_at_once(shared_server: ServeProcess, jfk: Path) -> None:
    with client_of(shared_server).listen.v1.connect(
        model="tiny", language="en", encoding="linear16", sample_rate="16000"
    ) as connection:
        connection.send_finalize()
        empty = connection.recv()
        assert (empty.type, empty.from_finalize, empty.channel.alternatives[0].transcript) == ("Results", True, "")
        stream(connection, read_clip(jfk)[: 16_000 * 2])
        connection.send_finalize()
        result = connection.recv()
        assert (result.is_final, result.from_finalize, result.speech_final) == (True, True, False)
        assert "fellow" in words(result.channel.alternatives[0].transcript)
        connection.send_close_stream()
        assert connection.recv().type == "Metadata"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("model=nova-3", "encoding"),
        (f"{RAW}&channels=2", "channels"),
        ("encoding=linear16&sample_rate=11025", "sample_rate"),
        ("encoding=mulaw&sample_rate=16000", "sample_rate"),
        (f"{RAW}&endpointing=soon", "endpointing"),
        (f"{RAW}&redact=pii", "redact"),
        (f"{RAW}&model=other", "model"),
        (f"{RAW}&utterance_end_ms=999999999", "utterance_end_ms"),
    ],
)
def test_bad_requests_are_refused_before_the_handshake(shared_server: ServeProcess, query: str, param: str) -> None:
    address = shared_server.url.replace("http://", "ws://")
    with pytest.raises(InvalidStatus) as refused, connect(f"{address}/v1/listen?{query}"):
        pass
    assert refused.value.response.status_code in (400, 404)
    assert json.loads(refused.value.response.body)["error"]["param"] == param


def test_bad_messages_are_answered_and_change_nothing(shared_server: ServeProcess) -> None:
    address = shared_server.url.replace("http://", "ws://")
    with connect(f"{address}/v1/listen?{RAW}") as connection:
        for message in ("nothing", "[]", '{"type": 1}', '{"type": "Configure"}'):
            connection.send(message)
            assert json.loads(connection.recv(20))["variant"] == "SchemaError"
        connection.send(b"\0")  # half a sample
        assert json.loads(connection.recv(20))["type"] == "Error"
        connection.send(b"")  # an empty message ends the stream too
        assert json.loads(connection.recv(20))["type"] == "Metadata"
