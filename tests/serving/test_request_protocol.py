"""Messages of request processes: what is sent arrives unchanged, and what is malformed ends the process only."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path

import pytest

from choral import errors
from choral.diarization import Speaker, SpeakerTurn
from choral.options import TranscribeOptions
from choral.serving.request_inputs import InputLimits, InputRef
from choral.serving.request_protocol import (
    BadMessage,
    FrameReader,
    ProcessConfig,
    StartMessage,
    decode_config,
    decode_error,
    decode_segment,
    decode_start,
    decode_transcript,
    encode_config,
    encode_error,
    encode_segment,
    encode_start,
    encode_transcript,
    frame,
    receive,
)
from choral.speakers.reference_clips import ReferenceClip
from choral.transcript import Segment, Transcript, Word

WORDS = (Word(" Ünï", 0.1, 1 / 3, 0.7), Word("\udce9", 0.5, 1.0, 1e-300))
SEGMENT = Segment(3, 3000, 0.1, 2 / 3, " Ünï\udce9", (1, 50_363), 0.2, -1 / 3, 1.1, math.inf, WORDS, (-0.1, -1e-9))


def round_trip(data: bytes) -> list[object]:
    (message,) = FrameReader().feed(data)
    return message


def test_what_is_sent_arrives_unchanged() -> None:
    options = TranscribeOptions(
        language="en",
        temperature=(0.0, 0.4),
        clip_timestamps=(0.1, 2 / 3),
        suppress_tokens=(),
        seed=-(2**63),
        replacements={"a": "b"},
        diarize=True,
        voices={"Ünï": (1 / 3,) * 256},
    )
    flags = {"priority": "batch", "client_waits": True, "wants_segments": False, "wants_progress": True}
    path = InputRef(kind="path", name="a\udce9.wav", folder="/somewhere")
    samples = InputRef(
        kind="samples", name="x", channel_peaks=(0.1, 0.2), is_split=True, warnings=("one",), levels_db={"ebu": -1 / 3}
    )
    for ref in (path, samples):
        clips = (ReferenceClip("Ünï", "data:,"),)
        text = {"text": "Ünïcode\n", "wants_text": False}
        start = StartMessage(id=7, input=ref, options=options, references=clips, **text, **flags)
        assert decode_start(round_trip(encode_start(start))) == start
    for limits in (InputLimits(), InputLimits(roots=("/a",), allowed_hosts=(), max_audio_s=1 / 3)):
        config = ProcessConfig(limits=limits, max_memory_s=0.1, n_requests=3)
        assert decode_config(round_trip(encode_config(config))) == config
    plain = Segment(0, 0, 0.0, 1.0, " a", (), 0.0, -0.5, 1.0, 0.0, language="fr")
    for segment in (SEGMENT, plain):
        assert decode_segment(json.loads(json.dumps(encode_segment(segment)))) == segment
    speakers, turns = (Speaker("Anna", 1 / 3, (0.6, 0.8)),), (SpeakerTurn(0.1, 1 / 3, "Anna"),)
    transcript = Transcript(" text", (plain, SEGMENT), "en", 1 / 3, 11.0, "translate", ("one",), speakers, turns)
    for n_sent in (0, 1, 2):
        values = json.loads(json.dumps(encode_transcript(transcript, n_sent)))
        assert decode_transcript(values, list(transcript.segments[:n_sent])) == transcript


def test_errors_keep_their_class_text_and_attributes() -> None:
    final = errors.FetchFailed("no", is_final=True)
    busy = errors.QueueFull("full", retry_after_s=7)
    for error in (final, busy, errors.FetchFailed("again"), errors.NotAudio("ünï"), errors.UsageError("x")):
        found = decode_error(json.loads(json.dumps(encode_error(error))))
        assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
    for name in ("SystemExit", "annotations", "warnings", 3):
        with pytest.raises((BadMessage, TypeError)):
            decode_error([name, "text", {}])


def test_frames_arrive_in_any_pieces() -> None:
    data = frame(["a", 1]) + frame(["b", "x" * 1000])
    for size in (1, 3, 5, len(data)):
        reader = FrameReader()
        found = [message for i in range(0, len(data), size) for message in reader.feed(data[i : i + size])]
        assert found == [["a", 1], ["b", "x" * 1000]]


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff", b"\0\0\0\x01x", b"\0\0\0\x02{}", b"\0\0\0\x02[]", b"\0\0\0\x03\xff\xff\xff"]
)
def test_malformed_frames(data: bytes) -> None:
    with pytest.raises(BadMessage):
        list(FrameReader().feed(data))


def test_descriptors_are_sent_with_their_message(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "file").open("w+b") as file:
        file.write(b"content")
        file.flush()
        for i in range(3):
            ours.send(frame(["before", i]))
            socket.send_fds(ours, [frame(["with", i])], [file.fileno()])
        for i in range(3):
            assert receive(theirs) == (["before", i], None)
            received = receive(theirs)
            assert received is not None
            message, fd = received
            assert message == ["with", i]
            assert fd is not None
            with open(fd, "rb") as shared:
                shared.seek(0)
                assert shared.read() == b"content"
        ours.close()
        assert receive(theirs) is None
