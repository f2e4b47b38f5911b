"""Invalid requests: each gets its status, field and message, and the server keeps working."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from audio.media_files import encode, read_clip
from serve_process import LIMIT_BYTES, STALL_S, ServeProcess

SENTENCE = "ask not what your country can do for you"
ROUTE = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def speech(jfk: Path) -> bytes:
    return encode(read_clip(jfk), "ogg", "libopus", rate=48_000)


@pytest.fixture(scope="module")
def http(shared_server: ServeProcess) -> Any:
    with httpx.Client(base_url=shared_server.url, timeout=60) as client:
        yield client


def refusal(answer: httpx.Response, status: int, param: str | None) -> str:
    """The message of an error in OpenAI's shape."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    return str(error["message"])


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"language": "xx"}, "language", "unknown language 'xx'"),
        ({"language": "xx-US"}, "language", "unknown language 'xx'"),
        ({"temperature": "3"}, "temperature", "`temperature` is '3': input should be less than or equal to 1"),
        ({"temperature": "warm"}, "temperature", "should be a valid number"),
        ({"temperature": "0,0.2,3"}, "temperature", "less than or equal to 1"),
        ({"temperature": ["0"] * 20}, "temperature", "send at most 16"),
        ({"temperature": "nan"}, "temperature", "should be a finite number"),
        ({"prompt": "speech " * 10_000}, "prompt", "`prompt` has 70,000 characters: string should have at most 4096"),
        ({"timestamp_granularities": "word"}, "timestamp_granularities", "needs response_format verbose_json"),
        ({"timestamp_granularities[]": "letter"}, "timestamp_granularities", "should be 'segment' or 'word'"),
        ({"response_format": "xml"}, "response_format", "'srt', 'verbose_json', 'vtt' or 'diarized_json'"),
        ({"stream": "perhaps"}, "stream", "a valid boolean"),
        ({"keywords[]": "x" * 201}, "keywords", "`keywords` has 201 characters"),
        ({"keywords[]": "a", "hotwords": "b"}, "keywords", "another name of hotwords"),
        ({"vad_filter": "true", "vad": "true"}, "vad_filter", "another name of vad"),
        ({"beam_size": "65"}, "beam_size", "beam_size is 65"),
        ({"max_completion_tokens": "0"}, "max_completion_tokens", "greater than or equal to 1"),
        ({"user": "u" * 1000}, "user", "at most 512"),
        ({"include[]": "tokens"}, "include", "should be 'logprobs'"),
        ({"include[]": "logprobs", "response_format": "text"}, "include", "needs response_format json"),
        ({"word_timestamps": "true"}, "word_timestamps", "no effect on json"),
        ({"mode": "fast"}, "mode", "should be 'auto', 'batched' or 'sequential'"),
        ({"priority": "now"}, "priority", "should be 'interactive' or 'batch'"),
        ({"loudness": "max"}, "loudness", "should be 'off', 'ebu' or 'rms'"),
        ({"chunking_strategy": "often"}, "chunking_strategy", '"auto" or an object'),
        ({"chunking_strategy": "[" * 100_000}, "chunking_strategy", "at most 4,096 are accepted"),
        ({"chunking_strategy[type]": "server_vad", "chunking_strategy[eagerness]": "low"}, "chunking_strategy",
         "unknown field `chunking_strategy.eagerness`"),
        ({"chunking_strategy": '{"type": "server_vad", "threshold": 7}'}, "chunking_strategy", "or equal to 1"),
        ({"chunking_strategy": "auto", "mode": "sequential"}, "chunking_strategy", "omit one of them"),
        ({"url": "https://example.org/a.mp3"}, "file", "more than one audio"),
        ({"model": ["tiny", "tiny"]}, "model", "given twice"),
        ({"model": ""}, "model", "`model` is missing"),
    ],
)  # fmt: skip
def test_invalid_fields(http: httpx.Client, speech: bytes, fields: dict[str, Any], param: str, text: str) -> None:
    answer = http.post(ROUTE, data={"model": "tiny", **fields}, files={"file": ("a.ogg", speech)})
    assert text in refusal(answer, 400, param)


def test_invalid_audio(http: httpx.Client, jfk: Path, speech: bytes) -> None:
    clip = read_clip(jfk)
    truncated = encode(clip, "mp4", "aac", rate=44_100)[:-20_000]  # its index was at its end
    silent_film = encode(clip, "mp4", None, video="mpeg4")
    for name, data, text in [
        ("empty.mp3", b"", "empty.mp3 is empty"),
        ("notes.mp3", b"Dear diary, " * 500, "notes.mp3"),
        ("cut.m4a", truncated, "cut.m4a"),
        ("film.mp4", silent_film, "film.mp4"),
        ("../../etc/passwd", b"root:x", "passwd"),
    ]:
        message = refusal(http.post(ROUTE, data={"model": "tiny"}, files={"file": (name, data)}), 400, "file")
        assert text in message
        assert ".." not in message
    hours = encode(np.zeros(16_000 * 700, np.int16), "flac", "flac")
    too_long = refusal(http.post(ROUTE, data={"model": "tiny"}, files={"file": ("long.flac", hours)}), 413, "file")
    assert "longer than 600 s" in too_long
    good = http.post(ROUTE, data={"model": "tiny"}, files={"file": ("a.ogg", speech)})
    assert SENTENCE in good.json()["text"]


def test_missing_file_and_invalid_forms(http: httpx.Client, shared_server: ServeProcess, speech: bytes) -> None:
    assert "there is no audio" in refusal(http.post(ROUTE, data={"model": "tiny"}), 400, "file")
    assert "as a file" in refusal(http.post(ROUTE, data={"model": "tiny", "file": "a.mp3"}), 400, "file")
    assert "application/json" in refusal(http.post(ROUTE, json={"model": "tiny"}), 415, None)
    assert "not given" in refusal(http.post(ROUTE, content=b"abc"), 415, None)
    two = [("file", ("a.ogg", speech)), ("file", ("b.ogg", speech))]
    assert "more than one audio" in refusal(http.post(ROUTE, data={"model": "tiny"}, files=two), 400, "file")
    other = {"audio": ("a.ogg", speech)}
    assert "unknown field `audio`" in refusal(http.post(ROUTE, data={"model": "tiny"}, files=other), 400, "audio")
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        for body in (b"", b"no form at all", b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nti'):
            answer = http.post(ROUTE, content=body, headers={"content-type": kind})
            assert answer.status_code == 400, (kind, body, answer.text)
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.ogg"\r\n\r\n' + speech
    for end in (b"", b"\r\n--x", b"\r\n--x\r\n"):
        cut_off = http.post(ROUTE, content=part + end, headers={"content-type": "multipart/form-data; boundary=x"})
        assert "cut off before its end" in refusal(cut_off, 400, None)
    assert "no model 'large'" in refusal(
        http.post(ROUTE, data={"model": "large"}, files={"file": ("a.ogg", speech)}), 404, "model"
    )
    good = http.post(ROUTE, data={"model": "tiny"}, files={"file": ("a.ogg", speech)})
    assert SENTENCE in good.json()["text"]


def test_upload_too_large(
    shared_server: ServeProcess, http: httpx.Client, client: openai.OpenAI, speech: bytes
) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.audio.transcriptions.create(file=("big.wav", bytes(26 * 2**20)), model="tiny")
    assert refused.value.status_code == 413
    assert f"the limit is 2.86 MiB ({LIMIT_BYTES:,} bytes)" in refused.value.message
    assert refused.value.param == "file"  # type: ignore[attr-defined]

    def endless() -> Any:  # says no length, so it is counted as it comes
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(40):
            yield bytes(100_000)

    answer = http.post(ROUTE, content=endless(), headers={"content-type": "multipart/form-data; boundary=x"})
    assert "the limit is 2.86 MiB" in refusal(answer, 413, "file")
    assert SENTENCE in client.audio.transcriptions.create(file=("a.ogg", speech), model="tiny").text


def test_openai_client_raises_typed_exceptions(
    shared_server: ServeProcess, client: openai.OpenAI, speech: bytes
) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.audio.transcriptions.create(file=("a.ogg", speech), model="gpt-4o")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.audio.transcriptions.create(file=("a.ogg", b"text"), model="tiny", stream=True)
    assert (wrong.value.code, wrong.value.param) == ("not_audio", "file")
    assert wrong.value.type == "invalid_request_error"


def test_stalled_uploads_and_headers_time_out(shared_server: ServeProcess, http: httpx.Client, speech: bytes) -> None:
    host, port = shared_server.url.removeprefix("http://").split(":")
    started_s = time.monotonic()
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
        )
        slow.settimeout(30)
        assert b" 408 " in slow.recv(4096)
    assert STALL_S <= time.monotonic() - started_s < STALL_S + 10
    with socket.create_connection((host, int(port))) as headless:
        headless.sendall(b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost:")
        headless.settimeout(30)
        assert headless.recv(4096) == b""
    assert SENTENCE in http.post(ROUTE, data={"model": "tiny"}, files={"file": ("a.ogg", speech)}).json()["text"]


def test_thousand_idle_connections(shared_server: ServeProcess, http: httpx.Client, speech: bytes) -> None:
    host, port = shared_server.url.removeprefix("http://").split(":")

    def connect(_: int) -> socket.socket:
        return socket.create_connection((host, int(port)), timeout=30)

    with ThreadPoolExecutor(32) as pool:
        connections = list(pool.map(connect, range(1000)))
    try:
        assert http.get("/health/live").status_code == 200
        assert SENTENCE in http.post(ROUTE, data={"model": "tiny"}, files={"file": ("a.ogg", speech)}).json()["text"]
    finally:
        for connection in connections:
            connection.close()


def test_thousand_stalled_uploads(shared_server: ServeProcess, http: httpx.Client, speech: bytes) -> None:
    host, port = shared_server.url.removeprefix("http://").split(":")
    head = (
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
        b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
    )

    async def stand_still() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head)
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return answer

    async def all_at_once() -> list[bytes]:
        return await asyncio.wait_for(asyncio.gather(*(stand_still() for _ in range(1000))), 120)

    answers = asyncio.run(all_at_once())
    given_up = [answer for answer in answers if answer.startswith(b"HTTP/1.1 408 ")]
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503 ")]
    assert given_up
    assert refused  # more than may be uploaded at once, and told so before anything is read
    assert len(given_up) + len(refused) == 1000
    assert all(b"\r\nretry-after: " in answer.lower() for answer in refused)
    assert SENTENCE in http.post(ROUTE, data={"model": "tiny"}, files={"file": ("a.ogg", speech)}).json()["text"]


def test_prompts_with_special_tokens_are_text(http: httpx.Client, speech: bytes) -> None:
    answer = http.post(
        ROUTE, data={"model": "tiny", "prompt": "<|endoftext|> \x00 é"}, files={"file": ("a.ogg", speech)}
    )
    assert answer.status_code == 200, answer.text
