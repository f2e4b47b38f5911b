"""`POST /v1/audio/alignments`, and channels apart, on a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import srt

from media_files import read_clip, wav
from serve_process import ServeProcess

TEXT = "And so, my fellow Americans: ask not what your country can do for you."
UNSPOKEN = "This sentence was never said by anybody, anywhere."


def post(server: ServeProcess, path: Path, text: object, **fields: Any) -> httpx.Response:
    files: dict[str, Any] = {"file": ("jfk.wav", path.read_bytes())}
    if isinstance(text, bytes):
        files["text"] = ("speech.txt", text)
    elif text is not None:
        fields["text"] = text
    form = {"model": "tiny", **fields}
    return httpx.post(f"{server.url}/v1/audio/alignments", data=form, files=files, timeout=120)


def test_alignment(shared_server: ServeProcess, jfk: Path) -> None:
    answer = post(shared_server, jfk, f"{TEXT} {UNSPOKEN}".encode(), language="en")
    assert answer.status_code == 200, answer.text
    fields = answer.json()
    words = fields["words"]
    assert " ".join(word["word"] for word in words) == f"{TEXT} {UNSPOKEN}"
    n_spoken = len(TEXT.split())
    assert all(0 <= word["start"] <= word["end"] <= 11 for word in words[:n_spoken])
    assert all(word["start"] is word["end"] is None for word in words[n_spoken:])
    answer = post(shared_server, jfk, TEXT, response_format="srt")
    assert [cue.content for cue in srt.parse(answer.text)] == [TEXT]


def test_mistakes(shared_server: ServeProcess, jfk: Path) -> None:
    for text, fields, status, param in (
        (None, {}, 400, "text"),
        (" ", {}, 400, "text"),
        (b"\xff\xfe", {}, 400, "text"),
        ("Heute scheint die Sonne, und morgen wird es regnen.", {"language": "en"}, 400, "text"),
        (TEXT, {"model": "other"}, 404, "model"),
        (TEXT, {"bogus": "1"}, 400, "bogus"),
        (TEXT, {"response_format": "text"}, 400, "response_format"),
    ):
        answer = post(shared_server, jfk, text, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


def test_channels_apart(shared_server: ServeProcess, jfk: Path, speech_clips: list[Path]) -> None:
    first, second = read_clip(jfk), read_clip(speech_clips[1])
    voices = np.stack([first, np.pad(second, (0, first.size - second.size))])
    answer = httpx.post(
        f"{shared_server.url}/v1/audio/transcriptions",
        data={"model": "tiny", "channels": "split", "response_format": "verbose_json", "language": "en"},
        files={"file": ("call.wav", wav(voices.T.reshape(-1), n_channels=2))},
        timeout=120,
    ).json()
    assert {segment["channel"] for segment in answer["segments"]} == {1, 2}
    assert (answer["duration"], answer["usage"]["seconds"]) == (11.0, 11)
