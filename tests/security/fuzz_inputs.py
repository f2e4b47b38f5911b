"""Random requests, forms, events and records: valid ones with parts exchanged, repeated, cut and overwritten.

Everything is derived from one `random.Random`, so that a seed repeats a run. Valid parts are frequent, because input
that is wrong everywhere is refused at the first check and reaches nothing behind it.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import random
import wave
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

from choral.options import TranscribeOptions

OPTIONS = tuple(field.name for field in dataclasses.fields(TranscribeOptions))
SPEECH_FIELDS = (
    "model",
    "prompt",
    "response_format",
    "timestamp_granularities[]",
    "stream",
    "include[]",
    "chunking_strategy",
)
JOB_FIELDS = ("url", "callback", "priority", "file", "id", "keep_s")
DIGITS = "9" * 400
TEXTS = (
    "", " ", "0", "-1", "1e999", "nan", "Infinity", "-0.0", "true", "null", "[]", "{}", "en", "xx", "text", "srt",
    "auto", DIGITS, f"-{DIGITS}", f"0.{DIGITS}", "\x00", "a\r\nb: c", "\u202e\ufeff", "🎵" * 50, "%00%ff%ED%A0%80",
    "../../etc/passwd", "0,5,3", ",".join(["1"] * 3000), ",", "a" * 5000, "{" * 200, '{"type": "server_vad"}',
    "' OR 1=1 --", "{id}", "%s%n",
)  # fmt: skip
URLS = (
    "http://127.0.0.1:1/a.wav", "http://127.0.0.1:99999999999999999999/", "http://127.0.0.1:-1/", "http://[::1/",
    "http://[v1.x]/", "http://", "http:///x", "https://a.invalid/", "ftp://a/", "file:///etc/passwd", "http://a@b@c/",
    "http://\x00/", "http://a b/", "HTTP://127.0.0.1:1", "http://127.1:1/", "http://0x7f000001:1/",
    "http://xn--\ud800/", f"http://{'a' * 300}.invalid/", "http://169.254.169.254/latest", "//127.0.0.1/x",
    "data:audio/wav;base64,AAAA", "http://127.0.0.1:1/\r\nHost: x",
)  # fmt: skip
VALID_FIELDS = (
    ("model", "whisper-1"), ("language", "en"), ("language", "English"), ("prompt", "Hello."), ("temperature", "0.2"),
    ("response_format", "json"), ("response_format", "verbose_json"), ("response_format", "srt"), ("stream", "true"),
    ("timestamp_granularities[]", "word"), ("clip_timestamps", "0,0.2"), ("suppress_tokens", "-1"), ("beam_size", "2"),
    ("mode", "batched"), ("vad", "true"), ("word_timestamps", "true"), ("priority", "batch"), ("max_tokens", "4"),
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, -(10**400), 0.5, 1e308, 1e-320, "", "en", "\ud800",
    "a" * 5000, [], [0], [0.0, 1.0], [[]], ["a"] * 3000, [None], {}, {"a": 1}, {"": {"": {"": []}}}, *URLS[:6],
)  # fmt: skip


def short_wav(pattern: bytes = bytes(range(256)), seconds: float = 0.3) -> bytes:
    """A short file that is audio: this pattern of 256 bytes, repeated."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(pattern * int(seconds * 125))
    return out.getvalue()


def mutate(draw: random.Random, data: bytes, most: int = 4) -> bytes:
    """A few places overwritten, deleted, doubled or cut off."""
    pieces = bytearray(data)
    for _ in range(draw.randint(1, most)):
        at, n_bytes = draw.randrange(len(pieces) + 1), draw.choice((1, 1, 2, 8, 64))
        match draw.randrange(6):
            case 0:
                pieces[at : at + n_bytes] = draw.randbytes(n_bytes)
            case 1:
                del pieces[at : at + n_bytes]
            case 2:
                pieces[at:at] = pieces[at : at + n_bytes] * draw.choice((1, 3, 200))
            case 3:
                pieces[at:at] = draw.choice(
                    (b"\r\n", b"\r\n\r\n", b"\x00", b"--", b'"', b"%", b",", b"\xff\xfe", b"\xed\xa0\x80")
                )
            case 4:
                del pieces[at:]
            case _:
                pieces[at : at + 1] = bytes([draw.randrange(256)])
    return bytes(pieces)


# --- HTTP ---

TARGETS = (
    "/", "/health/live", "/health/ready", "/v1/models", "/v1/models/x", "/v1/jobs", "/v1/jobs?limit=3",
    "/v1/jobs?limit=-1", "/v1/jobs/1", "/v1/jobs/1/events", "/v1/jobs/1?response_format=srt", "/v1/engine", "/metrics",
    "/openapi.json", "/page/app.js", "/v1/audio/transcriptions", "/v1/audio/translations",
    "/v1/realtime?intent=transcription", "/v1/%2e%2e/%2e%2e/etc/passwd", "/page/..%2f..%2fx", "//", "*",
    "http://evil.example/", "/%", "/\xff", f"/{'a' * 9000}", f"/v1/jobs?limit={DIGITS}",
)  # fmt: skip
HEADERS = (
    "Host: 127.0.0.1", "Host: localhost", "Host: evil.example", "Host:", "Content-Length: 0", "Content-Length: 5",
    "Content-Length: -1", "Content-Length: 1e3", f"Content-Length: {DIGITS}", "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked", "Expect: 100-continue", "Connection: close", "Connection: upgrade",
    "Upgrade: websocket", "Upgrade: h2c", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAA",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.x",
    "Sec-WebSocket-Extensions: permessage-deflate; x=1", "Authorization: Bearer \xe9\xff", "Authorization: Basic x",
    "X-Request-Id: a b", f"X-Request-Id: {'a' * 300}", "Content-Type: application/json",
    "Content-Type: multipart/form-data; boundary=x", "Content-Type: multipart/form-data",
    "Content-Type: application/x-www-form-urlencoded; charset=punycode", "Content-Type: \x80;;;=",
    "Content-Encoding: gzip", "Range: bytes=0-,-1,5-2", "If-None-Match: *", "If-Modified-Since: yesterday",
    f"Last-Event-ID: {DIGITS}", "Last-Event-ID: -1", "Origin: null", "Origin: https://evil.example",
    "Sec-Fetch-Site: cross-site", "traceparent: 00-0-0-0", "Accept: */*;q=x", "X: a\r\n b", "X : a", ": a", "no colon",
    f"X: {'a' * 70_000}", "X: \x00", "Cookie: " + "a=b; " * 500,
)  # fmt: skip
CHUNKS = (
    b"0\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"fffffffffffffffff\r\n",
    b"-1\r\n",
    b"5\r\nhel",
    b"1;x=y\r\na\r\n0\r\nT: a\r\n\r\n",
)


def http_request(draw: random.Random) -> bytes:
    """The bytes of one or two requests."""
    requests = [_one_request(draw) for _ in range(draw.choice((1, 1, 1, 2)))]
    return b"".join(mutate(draw, request) if draw.random() < 0.4 else request for request in requests)


def _one_request(draw: random.Random) -> bytes:
    method = draw.choice(
        ("GET", "GET", "POST", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "TRACE", "CONNECT", "get", "PRI", "")
    )
    version = draw.choice(("HTTP/1.1",) * 6 + ("HTTP/1.0", "HTTP/2.0", "HTTP/9.9", ""))
    lines = [f"{method} {draw.choice(TARGETS)} {version}", *draw.sample(HEADERS, draw.randint(0, 6))]
    if draw.random() < 0.7:
        lines.insert(1, "Host: 127.0.0.1")
    body = draw.choice((b"", b"", b"hello", b"{}", *CHUNKS, multipart(draw)[1]))
    if draw.random() < 0.5:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


# --- forms ---


def multipart(draw: random.Random) -> tuple[str, bytes]:
    """The content type and the body of a form."""
    if draw.random() < 0.5:
        return "multipart/form-data; boundary=x", _nearly_valid_body(draw)
    boundary = draw.choice(("x", "a-b", "'()+_,-./:=?", "x" * 70, "x" * 300, ""))
    parts = [_part(draw) for _ in range(draw.choice((1, 2, 3, 5, 5, 80)))]
    separator = f"\r\n--{boundary}\r\n".encode()
    body = separator[2:] + separator.join(parts) + f"\r\n--{boundary}--\r\n".encode()
    if draw.random() < 0.4:
        body = mutate(draw, body)
    charset = draw.choice(
        ("", "", "", "; charset=utf-8", "; charset=punycode", "; charset=undefined", "; charset=\xe9")
    )
    quoted = draw.choice((f'"{boundary}"', boundary))
    return draw.choice(("multipart/form-data",) * 5 + ("multipart/mixed",)) + f"; boundary={quoted}{charset}", body


def _nearly_valid_body(draw: random.Random) -> bytes:
    """A form that is valid on some routes, often with one more part, and sometimes damaged."""
    fields = dict(draw.sample(VALID_FIELDS, draw.randint(0, 2)))
    if draw.random() < 0.6:
        fields["model"] = "whisper-1"  # which jobs do not have
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{text}'.encode() for name, text in fields.items()]
    parts.append(
        b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + short_wav(bytes(256))
    )  # cheap
    if draw.random() < 0.4:
        parts.append(_part(draw))
    draw.shuffle(parts)
    body = b"--x\r\n" + b"\r\n--x\r\n".join(parts) + b"\r\n--x--\r\n"
    return mutate(draw, body, 1) if draw.random() < 0.3 else body


def _part(draw: random.Random) -> bytes:
    if draw.random() < 0.4:
        filename = draw.choice(("a.wav", "", "../../a", "a\x00b", "a" * 3000, '"', "é.mp3"))
        head = f'Content-Disposition: form-data; name="file"; filename="{filename}"'
        content = draw.choice((short_wav(), mutate(draw, short_wav(), 20), b"", b"not audio", draw.randbytes(300)))
    else:
        name, text = form_field(draw)
        head, content = f'Content-Disposition: form-data; name="{name}"', text.encode("utf-8", "surrogatepass")
    extra = draw.choice(
        ("", "", "\r\nContent-Type: text/plain; charset=utf-7", "\r\nContent-Transfer-Encoding: base64", "\r\nX")
    )
    return f"{head}{extra}\r\n\r\n".encode() + content


def form_field(draw: random.Random) -> tuple[str, str]:
    if draw.random() < 0.5:
        return draw.choice(VALID_FIELDS)
    name = draw.choice(
        (draw.choice(OPTIONS), draw.choice(SPEECH_FIELDS), draw.choice(JOB_FIELDS), draw.choice(TEXTS)[:300])
    )
    return name, draw.choice(URLS if name in ("url", "callback") else TEXTS)


def urlencoded(draw: random.Random) -> bytes:
    fields = [form_field(draw) for _ in range(draw.choice((1, 2, 4, 100)))]
    body = urlencode(fields, errors="surrogatepass").encode()
    return mutate(draw, body) if draw.random() < 0.4 else body


def json_job(draw: random.Random) -> bytes:
    names = [draw.choice((draw.choice(OPTIONS), draw.choice(JOB_FIELDS), "\ud800")) for _ in range(draw.randint(0, 5))]
    fields = {name: draw.choice(URLS if name in ("url", "callback") else VALUES) for name in names}
    if draw.random() < 0.6:
        fields["url"] = URLS[0]
    value = draw.choice((fields,) * 8 + (list(fields), draw.choice(VALUES)))
    body = json.dumps(value, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    nested = b"[" * 100_000
    return draw.choice((body,) * 6 + (mutate(draw, body),) * 3 + (nested,))


# --- realtime events ---

INPUTS: tuple[dict[str, Any], ...] = (
    {"format": {"type": "audio/pcm", "rate": 24000}},
    {"turn_detection": {"type": "server_vad"}},
    {"turn_detection": None},
    {"transcription": {"language": "en"}},
)
EVENTS: tuple[dict[str, Any], ...] = (
    *({"type": "session.update", "session": {"type": "transcription", "audio": {"input": each}}} for each in INPUTS),
    {"type": "transcription_session.update", "session": {"input_audio_format": "g711_ulaw"}},
    {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(range(256)) * 40).decode()},
    {"type": "input_audio_buffer.append", "audio": "AAA="},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
)


def realtime_message(draw: random.Random) -> str | bytes:
    event = json.loads(json.dumps(draw.choice(EVENTS)))
    if draw.random() < 0.5:
        _replace_somewhere(draw, event)
    if draw.random() < 0.2:
        event["event_id"] = draw.choice(VALUES)
    text = json.dumps(event)
    match draw.randrange(12):
        case 0:
            return text.encode()
        case 1:
            return mutate(draw, text.encode()).decode("utf-8", "replace")
        case 2:
            return draw.choice(
                ("", "null", "[]", "[" * 50_000, '{"type": 1}', "\x00", text * 2, '{"type": "' + "a" * 100_000 + '"}')
            )
        case _:
            return text


def _replace_somewhere(draw: random.Random, value: Any) -> None:
    """Exchange one value of a nested object, or add one."""
    while True:
        name = draw.choice([*value, draw.choice(TEXTS)[:80]])
        inner = value.get(name)
        if not isinstance(inner, dict) or draw.random() < 0.3:
            value[name] = draw.choice(VALUES)
            return
        value = inner


# --- records in Redis ---


def damaged(draw: random.Random, valid: bytes, kinds: Sequence[Callable[[], bytes]] = ()) -> bytes:
    """A value of a record that another program, another version or a defect may have written."""
    return draw.choice(
        (
            lambda: mutate(draw, valid),
            lambda: draw.choice(TEXTS).encode("utf-8", "surrogatepass"),
            lambda: json.dumps(draw.choice(VALUES)).encode("utf-8", "surrogatepass"),
            lambda: b"\xff\xfe",
            *kinds,
        )
    )()


def damaged_request(draw: random.Random, valid: bytes) -> bytes:
    """The JSON of a job request with a part exchanged; what is not an object stays."""
    fields = json.loads(valid)
    if isinstance(fields, dict):
        _replace_somewhere(draw, fields)
    return json.dumps(fields).encode()
