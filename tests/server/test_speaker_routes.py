"""Speakers over HTTP: OpenAI's `diarized_json` with its own client, speakers in the other formats, and turns alone."""

from __future__ import annotations

import base64
import math
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import openai
import pytest
from openai.types.audio import TranscriptionDiarized

import choral
from choral.speakers.networks import SpeakerNetworks
from choral.speakers.rttm import read_rttm
from media_files import RATE, read_clip, wav
from serve_process import ServeProcess

FIELDS = {"model": "tiny", "language": "en"}


@pytest.fixture(scope="module")
def president(jfk: Path) -> bytes:
    return wav(read_clip(jfk))


@pytest.fixture(scope="module")
def conversation(jfk: Path, speech_clips: list[Path], networks: SpeakerNetworks) -> bytes:
    """The end of the president's sentence, then a reader."""
    return wav(np.concatenate([read_clip(jfk)[-5 * RATE :], np.zeros(RATE // 4, np.int16), read_clip(speech_clips[0])]))


def post(server: ServeProcess, route: str, audio: bytes, **fields: Any) -> httpx.Response:
    files = {"file": ("a talk.wav", audio)}
    return httpx.post(f"{server.url}/v1/audio/{route}", data=fields, files=files, timeout=120)


def test_diarized_json(client: openai.OpenAI, conversation: bytes) -> None:
    given: dict[str, Any] = {"file": ("a.wav", conversation), "response_format": "diarized_json", **FIELDS}
    whole = client.audio.transcriptions.create(**given, chunking_strategy="auto")
    assert isinstance(whole, TranscriptionDiarized)
    TranscriptionDiarized.model_validate(whole.model_dump())  # the client itself does not check types
    assert whole.task == "transcribe"
    assert whole.usage is not None
    assert whole.usage.model_dump() == {"seconds": math.ceil(whole.duration), "type": "duration"}
    said = {name: " ".join(s.text for s in whole.segments if s.speaker == name) for name in ("A", "B")}
    assert said["A"].endswith("for your country.")
    assert f"{said['A']} {said['B']}" == whole.text
    *events, done = client.audio.transcriptions.create(**given, stream=True, chunking_strategy="auto")
    assert done.text == whole.text
    sent = [event.model_dump() for event in events if event.type == "transcript.text.segment"]
    assert sent == [segment.model_dump() for segment in whole.segments]
    deltas = [event for event in events if event.type == "transcript.text.delta"]
    assert "".join(delta.delta for delta in deltas) == whole.text
    assert [delta.segment_id for delta in deltas] == [segment.id for segment in whole.segments]


def test_speakers_in_other_formats(shared_server: ServeProcess, conversation: bytes) -> None:
    def ask(route: str, name: str, speakers: str) -> httpx.Response:
        fields = FIELDS | {"response_format": name, "diarize": "true", "speakers": speakers}
        answer = post(shared_server, route, conversation, **fields)
        assert answer.status_code == 200, answer.text
        return answer

    names = ["Speaker 1", "Speaker 2"]
    verbose = ask("transcriptions", "verbose_json", "2-3").json()
    assert list(dict.fromkeys(segment["speaker"] for segment in verbose["segments"])) == names
    assert [speaker["name"] for speaker in verbose["speakers"]] == names
    assert "words" not in verbose
    lines = ask("translations", "text", "2").text.splitlines()
    assert list(dict.fromkeys(line.partition(": ")[0] for line in lines)) == names


def test_turns_alone(shared_server: ServeProcess, conversation: bytes, tmp_path: Path) -> None:
    expected = choral.diarize(conversation)
    answer = post(shared_server, "diarization", conversation, embeddings="true")
    assert answer.status_code == 200, answer.text
    fields = answer.json()
    assert fields["turns"] == [vars(turn) for turn in expected.turns]
    assert [tuple(each["embedding"]) for each in fields["speakers"]] == [each.embedding for each in expected.speakers]
    assert (fields["duration"], fields["overlaps"]) == (expected.duration, [])
    (tmp_path / "rttm").write_text(post(shared_server, "diarization", conversation, response_format="rttm").text)
    assert [turn.speaker for turn in read_rttm(tmp_path / "rttm")["a_talk"]] == [
        turn.speaker.replace(" ", "_") for turn in expected.turns
    ]
    one = post(shared_server, "diarization", conversation, speakers="1").json()
    assert [set(each) for each in one["speakers"]] == [{"name", "total_s"}]


def test_known_speakers(client: openai.OpenAI, shared_server: ServeProcess, conversation: bytes, jfk: Path) -> None:
    clip = data_url(read_clip(jfk)[: 5 * RATE])
    whole = client.audio.transcriptions.create(
        file=("a.wav", conversation),
        response_format="diarized_json",
        known_speaker_names=["the president"],
        known_speaker_references=[clip],
        **FIELDS,
    )
    assert isinstance(whole, TranscriptionDiarized)
    assert list(dict.fromkeys(segment.speaker for segment in whole.segments)) == ["the president", "A"]
    silence = data_url(np.zeros(3 * RATE, np.int16))
    for name, reference, status, param, complaint in (
        ("a", data_url(read_clip(jfk)[:RATE]), 400, "references", "it has 1.0 s; send 2 to 10 s"),
        ("a", data_url(read_clip(jfk)), 400, "references", "it has 11.0 s; send 2 to 10 s"),
        ("a", silence, 400, "references", "no speech"),
        ("a", "data:audio/wav;base64,AAAA", 400, "references", "is not audio"),
        ("a", "data:audio/wav;base64,A!", 400, "references", "not valid base64"),
        ("a", "https://example.org/a.wav", 400, "references", "is not a data URL"),
        ("a" * 65, clip, 400, "names", "1 to 64 printable characters"),
        (["a", "a"], [clip, clip], 400, "names", "has a name twice"),
        (["a", "b"], clip, 400, "references", "a reference for each name"),
        ([], clip, 400, "names", "a reference for each name"),
        (list("abcde"), [clip] * 5, 400, "names", "at most 4"),
    ):
        fields = {"known_speaker_names[]": name, "known_speaker_references[]": reference}
        answer = post(shared_server, "diarization", wav(read_clip(jfk)[: 2 * RATE]), **fields)
        found = (answer.status_code, answer.json()["error"]["param"])
        assert (*found, complaint in answer.text) == (status, f"known_speaker_{param}", True), answer.text


def test_names_in_the_order_of_first_turns(
    client: openai.OpenAI, shared_server: ServeProcess, conversation: bytes
) -> None:
    given: dict[str, Any] = {"file": ("a.wav", conversation), "response_format": "diarized_json", **FIELDS}
    whole = client.audio.transcriptions.create(**given, extra_body={"speaker_names": "Anna, Ben"})
    assert list(dict.fromkeys(segment.speaker for segment in whole.segments)) == ["Anna", "Ben"]
    *events, _ = client.audio.transcriptions.create(**given, stream=True, extra_body={"speaker_names": "Anna"})
    sent = [event.speaker for event in events if event.type == "transcript.text.segment"]
    assert list(dict.fromkeys(sent)) == ["Anna", "A"]
    turns = post(shared_server, "diarization", conversation, speaker_names="Anna,Ben").json()
    assert [speaker["name"] for speaker in turns["speakers"]] == ["Anna", "Ben"]


def data_url(samples: npt.NDArray[np.int16]) -> str:
    return f"data:audio/wav;base64,{base64.b64encode(wav(samples)).decode()}"


def test_wrong_fields(shared_server: ServeProcess, president: bytes) -> None:
    for route, fields, param in (
        ("transcriptions", {"diarize": "true"}, "diarize"),
        ("transcriptions", {"diarize": "false", "response_format": "diarized_json"}, "diarize"),
        ("transcriptions", {"speakers": "2", "response_format": "srt"}, "speakers"),
        ("transcriptions", {"speakers": "2-", "response_format": "diarized_json"}, "speakers"),
        ("transcriptions", {"speakers": "0", "response_format": "diarized_json"}, "speakers"),
        ("transcriptions", {"speakers": "5-2", "response_format": "diarized_json"}, "speakers"),
        ("transcriptions", {"channels": "split", "response_format": "diarized_json"}, "channels"),
        ("transcriptions", {"speaker_names": "Anna", "response_format": "srt"}, "speaker_names"),
        ("transcriptions", {"speaker_names": "Anna,Anna", "response_format": "diarized_json"}, "speaker_names"),
        (
            "transcriptions",
            {
                "speaker_names": "Anna",
                "known_speaker_names[]": "a",
                "known_speaker_references[]": data_url(np.zeros(9, np.int16)),
                "response_format": "diarized_json",
            },
            "speaker_names",
        ),
        (
            "transcriptions",
            {"known_speaker_names[]": "a", "known_speaker_references[]": data_url(np.zeros(9, np.int16))},
            "known_speaker_names",
        ),
        ("diarization", {"response_format": "srt"}, "response_format"),
        ("diarization", {"response_format": "rttm", "embeddings": "true"}, "embeddings"),
        ("diarization", {"model": "tiny"}, "model"),
        ("diarization", {"speakers": "two"}, "speakers"),
        ("diarization", {"speaker_names": "Anna," + 65 * "b"}, "speaker_names"),
    ):
        model = FIELDS if route == "transcriptions" else {}
        answer = post(shared_server, route, president, **model, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    silent = post(shared_server, "diarization", b"no audio")
    assert (silent.status_code, silent.json()["error"]["param"]) == (400, "file")


def test_disconnect_ends_diarization(shared_server: ServeProcess, jfk: Path) -> None:
    long = wav(np.tile(read_clip(jfk), 8))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{shared_server.url}/v1/audio/diarization", files={"file": long}, timeout=httpx.Timeout(60, read=1))
    deadline_s = time.monotonic() + 5
    while shared_server.metric("choral_prep_backlog") and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert shared_server.metric("choral_prep_backlog") == 0
