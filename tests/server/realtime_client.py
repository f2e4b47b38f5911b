"""A WebSocket client for realtime sessions, and speech encoded in every audio format they accept."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

RATE = 16_000
TIMEOUT_S = 60.0
TRANSCRIPTION = "conversation.item.input_audio_transcription"
Int16Samples = npt.NDArray[np.int16]
Event = dict[str, Any]
FORMATS: dict[str, Event] = {
    "pcm24": {"type": "audio/pcm", "rate": 24_000},
    "pcm16": {"type": "audio/pcm", "rate": 16_000},
    "pcmu": {"type": "audio/pcmu"},
    "pcma": {"type": "audio/pcma"},
}
CODECS = {"pcm24": ("pcm_s16le", 24_000), "pcm16": ("pcm_s16le", 16_000)}
CODECS |= {"pcmu": ("pcm_mulaw", 8_000), "pcma": ("pcm_alaw", 8_000)}


class RealtimeClient:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.events: list[Event] = []  # all received so far

    def send(self, event_type: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": event_type, **fields}))

    def configure(self, **audio_input: Any) -> None:
        self.send("session.update", session={"type": "transcription", "audio": {"input": audio_input}})
        self.wait_for("session.updated")

    def append_audio(self, clip: bytes, *, chunk_bytes: int = 9_600) -> None:
        for start in range(0, len(clip), chunk_bytes):
            encoded = base64.b64encode(clip[start : start + chunk_bytes]).decode()
            self.send("input_audio_buffer.append", audio=encoded)

    def commit(self) -> None:
        self.send("input_audio_buffer.commit")

    def receive(self, timeout_s: float = TIMEOUT_S) -> Event:
        event: Event = json.loads(self.connection.recv(timeout_s))
        self.events.append(event)
        return event

    def wait_for(self, event_type: str) -> Event:
        """The next event of this type; an error event before it is a failure."""
        while (event := self.receive())["type"] != event_type:
            assert event["type"] != "error", event
        return event

    def wait_for_error(self) -> Event:
        error: Event = self.wait_for("error")["error"]
        return error

    def wait_for_text(self) -> str:
        """The text of the next completed turn, checked against its deltas."""
        event = self.wait_for(f"{TRANSCRIPTION}.completed")
        assert self.delta_text(event["item_id"]) == event["transcript"]
        return str(event["transcript"])

    def delta_text(self, item_id: str) -> str:
        deltas = [event for event in self.events if event["type"] == f"{TRANSCRIPTION}.delta"]
        return "".join(event["delta"] for event in deltas if event["item_id"] == item_id)

    @property
    def event_types(self) -> list[str]:
        return [event["type"] for event in self.events]


@contextmanager
def connected(url: str, query: str = "?intent=transcription", **settings: Any) -> Iterator[RealtimeClient]:
    """A client whose session is created."""
    address = url.replace("http://", "ws://") + "/v1/realtime" + query
    with connect(address, max_size=None, max_queue=None, **settings) as connection:
        client = RealtimeClient(connection)
        assert client.receive()["type"].endswith("session.created")
        yield client


def connect_error(url: str, query: str = "?intent=transcription", **settings: Any) -> tuple[int, Event]:
    """HTTP status and error of a refused connection."""
    with pytest.raises(InvalidStatus) as raised, connected(url, query, **settings):
        pass
    response = raised.value.response
    return response.status_code, json.loads(response.body)["error"]


def close_code(client: RealtimeClient) -> int:
    """The close code after which the server ends the session."""
    with pytest.raises(ConnectionClosed) as ended:
        client.receive()
    assert ended.value.rcvd is not None
    return ended.value.rcvd.code


def encode_audio(clip: Int16Samples, name: str) -> bytes:
    """Encode 16 kHz samples in a format of the API with ffmpeg."""
    codec, rate = CODECS[name]
    packed = io.BytesIO()
    with av.open(packed, "w", format="wav") as container:
        stream: Any = container.add_stream(codec, rate=rate, layout="mono")
        resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
        frame = av.AudioFrame.from_ndarray(clip[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            part.pts = None
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    data = packed.getvalue()
    return data[data.index(b"data") + 8 :]


def silence(seconds: float) -> Int16Samples:
    return np.zeros(round(seconds * RATE), np.int16)


def words(text: str) -> list[str]:
    return "".join(letter for letter in text.lower() if letter.isalnum() or letter == " ").split()
