"""Jobs over HTTP against a real server: results, events, deletion and errors."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import choral
from choral import formats
from job_client import LIMIT_S, joined, read_events, submit, wait_for
from support.http_stub import HttpStub


def test_job_result_equals_transcribe_in_every_format(
    http: httpx.Client, jfk: Path, jfk_transcript: choral.Transcript, job_folder: Path
) -> None:
    job_id = submit(http, jfk, word_timestamps="true", temperature="0,0.2")
    early = http.get(f"/v1/jobs/{job_id}", params={"response_format": "text"})
    assert early.status_code in (200, 409)
    job = wait_for(http, job_id, "succeeded")
    assert job["options"] == {"word_timestamps": True, "temperature": [0.0, 0.2]}
    assert job["progress"] == {"done_s": 11.0, "duration_s": 11.0}
    assert job["audio"] == jfk.name
    assert job["result"]["text"] == jfk_transcript.text
    assert job["timings"]["engine_s"] > 0
    no_speakers = http.get(f"/v1/jobs/{job_id}", params={"response_format": "rttm"})
    assert (no_speakers.status_code, no_speakers.json()["error"]["param"]) == (400, "response_format")
    for name in formats.FORMATS.keys() - {"rttm"}:
        answer = http.get(f"/v1/jobs/{job_id}", params={"response_format": name})
        assert answer.text == formats.render(jfk_transcript, name)
    assert http.get(f"/v1/jobs/{job_id}", params={"response_format": "docx"}).json()["error"]["param"]
    assert job_id in [listed["id"] for listed in http.get("/v1/jobs").json()["data"]]
    assert not (job_folder / "audio" / job_id).exists()


def test_a_job_aligns_a_text(http: httpx.Client, jfk: Path) -> None:
    text = "And so, my fellow Americans: ask not what your country can do for you. Nobody said these words."
    files = {"file": (jfk.name, jfk.read_bytes()), "align": ("speech.txt", text.encode())}
    answer = http.post("/v1/jobs", files=files)
    assert answer.status_code == 202, answer.text
    job_id = answer.json()["id"]
    wait_for(http, job_id, "succeeded")
    found = http.get(f"/v1/jobs/{job_id}", params={"response_format": "verbose_json"}).json()
    assert " ".join(word["word"] for word in found["words"]) == text
    assert [word["start"] is None for word in found["words"]] == [False] * 14 + [True] * 4


def test_events_are_complete_across_reconnects(http: httpx.Client, speech_clips: list[Path], tmp_path: Path) -> None:
    job_id = submit(http, joined(speech_clips, 1, tmp_path), word_timestamps="true", temperature="0")
    first = read_events(http, job_id, max_events=5)  # the connection ends in the middle
    rest = read_events(http, job_id, last=first[-1].id)
    live = [event for event in (*first, *rest) if event.name == "segment"]
    late = read_events(http, job_id)  # a client that comes when all is over
    segments = [event for event in late if event.name == "segment"]
    assert live == segments
    assert [event.id for event in segments] == list(range(1, len(segments) + 1))
    assert [event.fields["id"] for event in segments] == list(range(len(segments)))
    assert len(segments) >= 3
    for event in segments:
        words = event.fields["words"]
        assert "".join(word["word"] for word in words) == event.fields["text"]
        assert event.fields["start"] <= words[0]["start"] <= words[-1]["end"] <= event.fields["end"] + 0.01
    done_s = [event.fields["progress"]["done_s"] for event in (*first, *rest) if event.name != "segment"]
    assert done_s == sorted(done_s)
    assert len(set(done_s)) > 2
    assert [event.name for event in (*first, *rest)].index("end") == len(first) + len(rest) - 1
    assert late[-1].name == "end"
    assert late[-1].fields["text"] == "".join(event.fields["text"] for event in segments).strip()
    assert late[-1].fields["state"] == "succeeded"
    assert [event.name for event in read_events(http, job_id, last=len(segments))] == ["end"]


def test_url_job_with_signed_callback(
    http: httpx.Client, http_stub: HttpStub, jfk: Path, jfk_transcript: choral.Transcript
) -> None:
    order = {
        "url": http_stub.serve(jfk),
        "callback": f"{http_stub.url}/done",
        "priority": "batch",
        "language": "English",
    }
    answer = http.post("/v1/jobs", json=order)
    assert answer.status_code == 202, answer.text
    job = wait_for(http, answer.json()["id"], "succeeded")
    assert job["result"]["text"] == jfk_transcript.text
    assert (job["priority"], job["options"]) == ("batch", {"language": "en"})
    deadline_s = time.monotonic() + LIMIT_S
    while not http_stub.deliveries[job["id"]]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert http_stub.deliveries[job["id"]] == 1


def test_delete_cancels_running_and_deletes_ended_jobs(
    http: httpx.Client, speech_clips: list[Path], tmp_path: Path, job_folder: Path
) -> None:
    job_id = submit(http, joined(speech_clips, 20, tmp_path))
    assert (job_folder / "audio" / job_id).exists()
    wait_for(http, job_id, "running")
    cancelled = http.delete(f"/v1/jobs/{job_id}").json()
    assert cancelled["state"] == "cancelled"
    assert not (job_folder / "audio" / job_id).exists()
    assert http.get(f"/v1/jobs/{job_id}", params={"response_format": "srt"}).status_code == 410
    assert [event.name for event in read_events(http, job_id)] == ["end"]
    assert http.delete(f"/v1/jobs/{job_id}").json() == {"id": job_id, "object": "job", "deleted": True}
    for gone in (http.get(f"/v1/jobs/{job_id}"), http.delete(f"/v1/jobs/{job_id}")):
        assert gone.status_code == 404
        assert gone.json()["error"]["code"] == "job_not_found"
    assert http.get(f"/v1/jobs/{job_id}/events").status_code == 404


def test_invalid_audio_fails_only_its_job(http: httpx.Client, tmp_path: Path) -> None:
    letter = tmp_path / "letter.mp3"
    letter.write_text("Dear reader, this is no sound at all. " * 100)
    job_id = submit(http, letter)
    job = wait_for(http, job_id, "failed")
    assert job["error"]["type"] == "NotAudio"
    assert "letter.mp3" in job["error"]["message"]
    refused = http.get(f"/v1/jobs/{job_id}", params={"response_format": "text"})
    assert refused.status_code == 422
    assert "letter.mp3" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "param", "says"),
    [
        ({"data": {"language": "en"}, "files": {"other": b"x"}}, 400, "other", "unknown field `other`"),
        ({"data": {"beam_size": "2"}, "files": {"more": b""}}, 400, "more", "the fields are file, url"),
        ({"json": {}}, 400, "file", "there is no audio"),
        ({"json": {"url": "ftp://example.org/a"}}, 400, "url", "http"),
        ({"json": {"url": "https://example.org/a", "beam": 2}}, 400, "beam", "unknown field `beam`"),
        ({"json": {"url": "https://example.org/a", "beam_size": "two"}}, 400, "beam_size", "a valid integer"),
        ({"json": {"url": "https://example.org/a", "beam_size": 65}}, 400, "beam_size", "less than or equal to 64"),
        ({"json": {"url": "https://example.org/a", "language": "xx"}}, 400, "language", "xx"),
        ({"json": {"url": "https://example.org/a", "priority": "high"}}, 400, "priority", "'interactive' or 'batch'"),
        ({"json": {"url": "https://example.org/a", "callback": "here"}}, 400, "callback", "http or https"),
        ({"json": {"url": "https://example.org/a", "language": "de"}}, 400, "language", "English-only"),
        ({"json": {"url": "https://example.org/a", "task": "translate"}}, 400, "task", "English-only"),
        ({"json": ["https://example.org/a"]}, 400, None, "must be an object"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, None, "not valid JSON"),
        ({"content": b"x", "headers": {"content-type": "audio/flac"}}, 415, None, "multipart/form-data"),
        ({"data": {"vad": "perhaps"}, "files": {"file": b"x"}}, 400, "vad", "a valid boolean"),
        ({"data": {"beam_size": "2.5"}, "files": {"file": b"x"}}, 400, "beam_size", "a valid integer"),
        ({"data": {"clip_timestamps": "1,b"}, "files": {"file": b"x"}}, 400, "clip_timestamps", "a valid number"),
        ({"data": {"url": "https://example.org/a"}, "files": {"file": b"x"}}, 400, "file", "more than one audio"),
        ({"json": {"url": "https://example.org/a", "align": "?"}}, 400, "align", "no letters or digits"),
        ({"json": {"url": "https://example.org/a", "align": "a", "channels": "split"}}, 400, "align", "all channels"),
        ({"files": {"file": b"x", "align": b"\xff\xfe"}}, 400, "align", "not text in UTF-8"),
        ({"data": {"align": "a"}, "files": {"file": b"x", "align": b"b"}}, 400, "align", "twice"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_invalid_job_form_names_the_field(
    http: httpx.Client, body: dict[str, Any], status: int, param: str | None, says: str
) -> None:
    before = http.get("/v1/jobs").json()["data"]
    answer = http.post("/v1/jobs", **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert says in error["message"]
    assert [job["id"] for job in http.get("/v1/jobs").json()["data"]] == [job["id"] for job in before]


def test_other_invalid_requests(http: httpx.Client) -> None:
    assert http.get("/v1/jobs", params={"limit": 0}).status_code == 400
    assert http.get("/v1/jobs/nothing").status_code == 404
    answer = http.get("/v1/jobs/nothing/events", headers={"Last-Event-ID": "yesterday"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")
