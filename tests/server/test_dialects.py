"""The protocols of other speech servers, on a real server, as their clients speak them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import srt

import local_server
from audio.media_files import encode, read_clip
from serve_process import ServeProcess

WORDS = "ask not what your country can do for you"


def plain(text: str) -> str:
    return " ".join(text.lower().replace(",", "").replace(".", "").replace("\n", " ").split())


def raw_samples(path: Path) -> bytes:
    """16-bit samples at 16 kHz, without a header."""
    return read_clip(path).tobytes()


def post(server: ServeProcess, path: str, name: str, audio: bytes, *, form: Any = None, **query: Any) -> httpx.Response:
    files = {name: (name, audio)}  # as requests names a file without a name
    return httpx.post(f"{server.url}{path}", params=query, data=form, files=files, timeout=120)


def test_asr_webservice(shared_server: ServeProcess, jfk: Path) -> None:
    """Bazarr's two requests, and the other formats."""
    raw = raw_samples(jfk)
    found = post(shared_server, "/detect-language", "audio_file", raw, encode="false").json()
    assert (found["detected_language"], found["language_code"]) == ("english", "en")
    assert 0.5 < found["confidence"] <= 1
    query = {"task": "transcribe", "language": "en", "output": "srt", "encode": "false", "video_file": "a film.mkv"}
    answer = post(shared_server, "/asr", "audio_file", raw, **query)
    cues = list(srt.parse(answer.text))
    assert WORDS in plain(" ".join(cue.content for cue in cues))
    assert 8 < cues[-1].end.total_seconds() <= 11.5
    assert "video_file" in answer.headers["warning"]
    for output, start in (("txt", "And so"), ("vtt", "WEBVTT"), ("tsv", "start\tend\ttext"), ("json", "{")):
        answer = post(shared_server, "/asr", "audio_file", jfk.read_bytes(), output=output, word_timestamps="true")
        assert answer.status_code == 200, answer.text
        assert answer.text.lstrip().startswith(start)
        assert answer.headers["content-type"].startswith("text/plain")
    fields = json.loads(answer.text)
    assert (fields["language"], WORDS in plain(fields["text"])) == ("en", True)
    assert fields["segments"][0]["words"][0]["word"].strip() == "And"


def test_whisper_cpp(shared_server: ServeProcess, jfk: Path) -> None:
    audio = jfk.read_bytes()
    form = {"temperature": "0.0", "temperature_inc": "0.2", "response_format": "json"}  # as in its README
    assert WORDS in plain(post(shared_server, "/inference", "file", audio, form=form).json()["text"])
    form = {"response_format": "verbose_json", "beam_size": "-1", "best_of": "-1", "language": "auto"}
    fields = post(shared_server, "/inference", "file", audio, form=form).json()
    assert (fields["language"], fields["detected_language"]) == ("english", "english")
    assert fields["segments"][0]["words"]
    form = {"response_format": "srt", "offset_t": "3000", "duration": "5000"}
    cues = list(srt.parse(post(shared_server, "/inference", "file", audio, form=form).text))
    assert cues[0].start.total_seconds() >= 3
    assert cues[-1].end.total_seconds() <= 8.5
    for model, status in (("models/ggml-tiny.bin", 200), ("tiny", 200), ("models/ggml-large-v3.bin", 404), ("", 404)):
        answer = httpx.post(f"{shared_server.url}/load", files={"model": (None, model)})
        assert answer.status_code == status, answer.text
    assert "serves tiny only" in answer.text


def listen(server: ServeProcess, body: bytes, kind: str = "audio/wav", **query: Any) -> httpx.Response:
    headers = {"content-type": kind, "authorization": "Token none"}
    return httpx.post(f"{server.url}/v1/listen", params=query, content=body, headers=headers, timeout=120)


def test_deepgram(shared_server: ServeProcess, jfk: Path) -> None:
    query = {"model": "nova-3", "smart_format": "true", "utterances": "true", "detect_language": "true", "tag": "x"}
    answer = listen(shared_server, jfk.read_bytes(), **query)
    assert answer.status_code == 200, answer.text
    assert "tag" in answer.headers["warning"]
    fields = answer.json()
    [channel] = fields["results"]["channels"]
    [best] = channel["alternatives"]
    assert (channel["detected_language"], WORDS in plain(best["transcript"])) == ("en", True)
    assert [word["punctuated_word"] for word in best["words"]] == best["transcript"].split()
    assert (best["words"][0]["word"], 0 < best["confidence"] <= 1) == ("and", True)
    assert plain(" ".join(each["transcript"] for each in fields["results"]["utterances"])) == plain(best["transcript"])
    assert fields["metadata"]["sha256"] == hashlib.sha256(jfk.read_bytes()).hexdigest()
    raw = {"encoding": "linear16", "sample_rate": "16000", "channels": "1"}
    fields = listen(shared_server, raw_samples(jfk), "application/octet-stream", **raw).json()
    assert (fields["metadata"]["duration"], best["transcript"]) == (
        11.0, fields["results"]["channels"][0]["alternatives"][0]["transcript"],
    )  # fmt: skip
    with local_server.serve() as files:
        url = files.add("/jfk.wav", jfk.read_bytes())
        fields = listen(shared_server, json.dumps({"url": url}).encode(), "application/json").json()
    assert WORDS in plain(fields["results"]["channels"][0]["alternatives"][0]["transcript"])
    for body, kind, given, status in (
        (b"no audio" * 9, "audio/wav", {}, 400),
        (b"", "audio/wav", {}, 400),
        (b"{}", "application/json", {}, 400),
        (b"x", "audio/wav", {"redact": "pci"}, 400),
        (b"x", "audio/wav", {"model": "other"}, 404),
        (bytes(3_000_001), "audio/wav", {}, 413),
    ):
        assert listen(shared_server, body, kind, **given).status_code == status


@pytest.mark.parametrize(
    ("path", "name", "query", "status", "param"),
    [
        ("/asr", "file", {}, 400, "audio_file"),
        ("/asr", "audio_file", {"output": "docx"}, 400, "output"),
        ("/asr", "audio_file", {"language": "klingon"}, 400, "language"),
        ("/asr", "audio_file", {}, 400, "audio_file"),  # not audio
        ("/detect-language", "audio_file", {}, 400, "audio_file"),
        ("/inference", "audio", {}, 400, "file"),
        ("/inference", "file", {}, 400, "file"),
    ],
)
def test_mistakes(
    shared_server: ServeProcess, path: str, name: str, query: dict[str, str], status: int, param: str
) -> None:
    answer = post(shared_server, path, name, b"no audio" * 100, **query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


def test_limits_hold(shared_server: ServeProcess) -> None:
    """The largest request, and the longest audio: 600 s on this server, of which raw samples at 16 kHz have more bytes
    than a request may have."""
    for path, name in (("/asr", "audio_file"), ("/detect-language", "audio_file"), ("/inference", "file")):
        assert post(shared_server, path, name, bytes(3_000_001), encode="false").status_code == 413
        long = encode(np.zeros(16_000 * 601, np.int16), "flac", "flac")
        assert post(shared_server, path, name, long).status_code == 413


def test_health_and_docs(shared_server: ServeProcess) -> None:
    assert httpx.get(f"{shared_server.url}/health").json() == {"status": "ready"}
    page = httpx.get(f"{shared_server.url}/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "//" not in page.text.replace("<!doctype", "")  # nothing from other hosts
    assert "openai, asr, whisper-cpp, deepgram, wyoming" in shared_server.greeting
