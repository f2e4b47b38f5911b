"""A client of live sessions in plain messages, and real speech in every format that they take."""

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
PATIENCE_S = 60.0
TRANSCRIPTION = "conversation.item.input_audio_transcription"
Sound = npt.NDArray[np.int16]
Event = dict[str, Any]
FORMATS: dict[str, Event] = {
    "pcm24": {"type": "audio/pcm", "rate": 24_000},
    "pcm16": {"type": "audio/pcm", "rate": 16_000},
    "pcmu": {"type": "audio/pcmu"},
    "pcma": {"type": "audio/pcma"},
}
CODECS = {"pcm24": ("pcm_s16le", 24_000), "pcm16": ("pcm_s16le", 16_000)}
CODECS |= {"pcmu": ("pcm_mulaw", 8_000), "pcma": ("pcm_alaw", 8_000)}


class LiveClient:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.events: list[Event] = []  # all that came so far

    def send(self, kind: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": kind, **fields}))

    def configure(self, **audio_input: Any) -> None:
        self.send("session.update", session={"type": "transcription", "audio": {"input": audio_input}})
        self.until("session.updated")

    def say(self, sound: bytes, *, chunk_bytes: int = 9_600) -> None:
        for start in range(0, len(sound), chunk_bytes):
            encoded = base64.b64encode(sound[start : start + chunk_bytes]).decode()
            self.send("input_audio_buffer.append", audio=encoded)

    def commit(self) -> None:
        self.send("input_audio_buffer.commit")

    def receive(self, patience_s: float = PATIENCE_S) -> Event:
        event: Event = json.loads(self.connection.recv(patience_s))
        self.events.append(event)
        return event

    def until(self, kind: str) -> Event:
        """The next event of this kind; an error that nobody waits for is a failure."""
        while (event := self.receive())["type"] != kind:
            assert event["type"] != "error", event
        return event

    def error(self) -> Event:
        found: Event = self.until("error")["error"]
        return found

    def completed(self) -> str:
        """The text of the next turn, which its deltas must be."""
        event = self.until(f"{TRANSCRIPTION}.completed")
        assert self.shown(event["item_id"]) == event["transcript"]
        return str(event["transcript"])

    def shown(self, item_id: str) -> str:
        deltas = [event for event in self.events if event["type"] == f"{TRANSCRIPTION}.delta"]
        return "".join(event["delta"] for event in deltas if event["item_id"] == item_id)

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]


@contextmanager
def joined(url: str, query: str = "?intent=transcription", **settings: Any) -> Iterator[LiveClient]:
    """A session that has begun."""
    address = url.replace("http://", "ws://") + "/v1/realtime" + query
    with connect(address, max_size=None, max_queue=None, **settings) as connection:
        client = LiveClient(connection)
        assert client.receive()["type"].endswith("session.created")
        yield client


def refusal(url: str, query: str = "?intent=transcription", **settings: Any) -> tuple[int, Event]:
    """How a server says no: the status, and the error."""
    with pytest.raises(InvalidStatus) as raised, joined(url, query, **settings):
        pass
    response = raised.value.response
    return response.status_code, json.loads(response.body)["error"]


def closed(client: LiveClient) -> int:
    """The code with which the server ends a session."""
    with pytest.raises(ConnectionClosed) as ended:
        client.receive()
    assert ended.value.rcvd is not None
    return ended.value.rcvd.code


def spoken(sound: Sound, name: str) -> bytes:
    """16 kHz samples in a format of the API, made by ffmpeg's own encoders."""
    codec, rate = CODECS[name]
    packed = io.BytesIO()
    with av.open(packed, "w", format="wav") as container:
        stream: Any = container.add_stream(codec, rate=rate, layout="mono")
        resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
        frame = av.AudioFrame.from_ndarray(sound[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            part.pts = None
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    data = packed.getvalue()
    return data[data.index(b"data") + 8 :]


def silence(seconds: float) -> Sound:
    return np.zeros(round(seconds * RATE), np.int16)


def words(text: str) -> list[str]:
    return "".join(letter for letter in text.lower() if letter.isalnum() or letter == " ").split()
