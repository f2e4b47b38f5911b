"""Wyoming's protocol on a real server, spoken by hand."""

from __future__ import annotations

import asyncio
import json
import re
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zeroconf.asyncio import AsyncZeroconf

from audio.media_files import read_clip
from choral.cli.main import main
from choral.server.dialects.wyoming_zeroconf import SERVICE, announced
from serve_process import ServeProcess

WORDS = "ask not what your country can do for you"
RAW = {"rate": 16_000, "width": 2, "channels": 1}


class WyomingClient:
    def __init__(self, connection: socket.socket) -> None:
        self.connection, self._file = connection, connection.makefile("rb")

    def send(self, kind: str, payload: bytes = b"", **data: Any) -> None:
        body = json.dumps(data).encode()
        header = {"type": kind, "data_length": len(body), "payload_length": len(payload)}
        self.connection.sendall(json.dumps(header).encode() + b"\n" + body + payload)

    def receive(self) -> tuple[str, dict[str, Any]]:
        line = self._file.readline()
        if not line:
            return "closed", {}
        header = json.loads(line)
        return header["type"], json.loads(self._file.read(header["data_length"]) or b"{}")

    def speak(self, samples: bytes) -> None:
        self.send("audio-start", **RAW)
        for start in range(0, len(samples), 32_000):
            self.send("audio-chunk", samples[start : start + 32_000], **RAW)
        self.send("audio-stop")


@contextmanager
def connected(server: ServeProcess) -> Iterator[WyomingClient]:
    found = re.search(r"wyoming \(port (\d+)\)", server.greeting)
    assert found, server.greeting
    with socket.create_connection(("127.0.0.1", int(found[1])), timeout=120) as connection:
        yield WyomingClient(connection)


def test_describe_and_transcribe(shared_server: ServeProcess, jfk: Path) -> None:
    with connected(shared_server) as client:
        client.send("describe")
        kind, info = client.receive()
        assert (kind, info["asr"][0]["models"][0]["name"]) == ("info", "tiny")
        for names in ([], ["Americans"]):  # twice on one connection
            client.send("transcribe", language="en", transcript_names=names)
            client.speak(read_clip(jfk).tobytes())
            client.send("ping", text="early")  # kept until the transcript is sent
            events = [client.receive()]
            while events[-1][0] != "transcript-stop":
                events.append(client.receive())
            assert events[0] == ("transcript-start", {"language": "en"})
            chunks = "".join(data["text"] for kind, data in events if kind == "transcript-chunk")
            [whole] = [data for kind, data in events if kind == "transcript"]
            assert (whole["text"], whole["language"]) == (chunks, "en")
            assert WORDS in chunks.replace(",", "")
            assert client.receive() == ("pong", {"text": "early"})
        client.speak(b"")
        assert [client.receive()[0] for _ in range(3)] == ["transcript-start", "transcript", "transcript-stop"]


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"[" * 60_000 + b"\n",
        b"x" * 200_000,
        b'{"type": "audio-chunk", "payload_length": 99999999}\n',
        b'{"type": "audio-chunk", "payload_length": -1}\n',
        b'{"type": 1}\n',
        b'{"type": "audio-start", "data": {"width": 4}}\n',
        b'{"type": "transcribe", "data": {"language": "klingon"}}\n',
    ],
)
def test_wrong_events_end_the_connection(shared_server: ServeProcess, sent: bytes) -> None:
    with connected(shared_server) as client:
        client.connection.sendall(sent)
        kind, data = client.receive()
        assert (kind, bool(data["text"])) == ("error", True)
        with suppress(ConnectionResetError):  # where the server has not read all bytes
            assert client.receive()[0] == "closed"


def test_audio_over_the_limit(shared_server: ServeProcess) -> None:
    with connected(shared_server) as client:
        client.send("audio-start", **RAW)
        client.send("audio-chunk", bytes(3_000_001), **RAW)
        assert client.receive()[1]["code"] == "request_too_large"


def test_a_server_with_keys_does_not_offer_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--dialects", "all", "--api-key", "ck-x", "--port", "0"]) == 2
    assert "wyoming has no keys" in capsys.readouterr().err


def test_text_comes_while_one_speaks(shared_server: ServeProcess, jfk: Path) -> None:
    samples = read_clip(jfk).tobytes()
    with connected(shared_server) as client:
        client.send("transcribe", language="en", name="openai/whisper-tiny")
        client.send("audio-start", **RAW)
        n_sent = 0
        while not select.select([client.connection], [], [], 0.2)[0]:  # text comes before the end of the audio
            chunk = samples[n_sent : n_sent + 6_400] or bytes(6_400)
            client.send("audio-chunk", chunk, **RAW)  # as fast as it is spoken, and then silence
            n_sent += len(chunk)
            assert n_sent < 60 * 32_000
        client.send("audio-chunk", samples[n_sent:], **RAW)
        client.send("audio-stop")
        events = [client.receive()]
        while events[-1][0] != "transcript-stop":
            events.append(client.receive())
    assert [kind for kind, _ in events[:2]] == ["transcript-start", "transcript-chunk"]
    chunks = "".join(data["text"] for kind, data in events if kind == "transcript-chunk")
    assert events[-2] == ("transcript", {"text": chunks, "language": "en"})
    assert "country" in chunks


def test_stereo_audio_is_transcribed_when_it_has_ended(shared_server: ServeProcess, jfk: Path) -> None:
    stereo = np.repeat(read_clip(jfk), 2).tobytes()
    raw = {**RAW, "channels": 2}
    with connected(shared_server) as client:
        client.send("transcribe", language="en")
        client.send("audio-start", **raw)
        client.send("audio-chunk", stereo, **raw)
        client.send("audio-stop")
        events = [client.receive()]
        while events[-1][0] != "transcript-stop":
            events.append(client.receive())
    assert WORDS in events[-2][1]["text"].replace(",", "")


def test_the_port_is_announced() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as bound:
            port = bound.getsockname()[1]
            name = f"choral-{socket.gethostname().partition('.')[0]}-{port}.{SERVICE}"
            async with announced(bound), AsyncZeroconf(interfaces=["127.0.0.1"]) as zeroconf:
                found = await zeroconf.async_get_service_info(SERVICE, name, 10_000)
                assert found is not None
                assert (found.port, found.parsed_addresses()) == (port, ["127.0.0.1"])

    asyncio.run(run())
