"""Transcription with speakers: two voices in one recording, through every way to run a request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import choral
from choral import formats
from choral.audio.recording import Recording
from choral.errors import DownloadFailed, UsageError
from choral.jobs.record import transcript_from_json, transcript_to_json
from choral.longform import diarized
from choral.options import SubtitleOptions, TranscribeOptions
from choral.speakers.networks import SpeakerNetworks
from choral.transcript import Segment
from media_files import RATE, read_clip, wav

OPTIONS = TranscribeOptions(diarize=True, word_timestamps=True, temperature=0.0)


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path, networks: SpeakerNetworks) -> Iterator[choral.Model]:
    with choral.load(tiny_en_pt, device="cpu", compute_type="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def conversation(jfk: Path, speech_clips: list[Path]) -> npt.NDArray[np.int16]:
    """The president, then the reader, within one window of 30 s."""
    pause = np.zeros(RATE // 4, np.int16)
    return np.concatenate([read_clip(jfk), pause, read_clip(speech_clips[0])])


def test_segments_end_where_the_speaker_changes(model: choral.Model, conversation: npt.NDArray[np.int16]) -> None:
    reported: list[Segment] = []
    transcript = model.transcribe(wav(conversation), OPTIONS, on_segment=reported.append)
    assert list(transcript.segments) == reported
    assert [segment.id for segment in reported] == list(range(len(reported)))
    plain = model.transcribe(wav(conversation), word_timestamps=True, temperature=0.0)
    assert transcript.text == plain.text == "".join(segment.text for segment in reported)
    assert [(word.text, word.start) for word in transcript.words] == [(word.text, word.start) for word in plain.words]
    texts = {name: "".join(s.text for s in reported if s.speaker == name) for name in ("Speaker 1", "Speaker 2")}
    assert texts["Speaker 1"].endswith("what you can do for your country.")
    assert texts["Speaker 1"] + texts["Speaker 2"] == transcript.text
    assert "country" not in texts["Speaker 2"]
    for segment in reported:
        assert {word.speaker for word in segment.words or ()} == {segment.speaker}
    assert [speaker.name for speaker in transcript.speakers] == ["Speaker 1", "Speaker 2"]
    assert all(5 < speaker.total_s < 12 and len(speaker.embedding) == 256 for speaker in transcript.speakers)
    assert transcript_from_json(transcript_to_json(transcript)) == transcript
    lines = formats.rttm(transcript, "talk").splitlines()
    assert [line.split()[7] for line in lines] == [turn.speaker.replace(" ", "_") for turn in transcript.turns]
    assert lines[0].startswith("SPEAKER talk 1 0.")
    assert {turn.speaker for turn in transcript.turns} == set(texts)
    assert formats.rttm(plain) == ""
    fields = json.loads(formats.verbose_json(transcript))
    assert fields["segments"][0]["speaker"] == fields["words"][0]["speaker"] == "Speaker 1"
    assert [speaker["name"] for speaker in fields["speakers"]] == ["Speaker 1", "Speaker 2"]


def test_processes_give_the_same_and_words_only_where_asked_for(
    model: choral.Model, conversation: npt.NDArray[np.int16]
) -> None:
    options = TranscribeOptions(diarize=True, speakers=(2, 4), temperature=0.0, mode="batched")
    expected = model.transcribe(wav(conversation), options)
    assert {segment.speaker for segment in expected.segments} == {"Speaker 1", "Speaker 2"}
    assert all(segment.words is None for segment in expected.segments)
    for processes in (0, 1):
        for _, outcome in model.transcribe_many([wav(conversation)], options, processes=processes):
            assert outcome == expected
    one = model.transcribe(conversation, diarize=True, speakers=1, speaker_names=["Anna", "Ben"], temperature=0.0)
    assert {segment.speaker for segment in one.segments} == {"Anna"}


def test_known_voices_are_named_in_processes_too(
    model: choral.Model, conversation: npt.NDArray[np.int16], speech_clips: list[Path]
) -> None:
    """The clips are read here, and their embeddings go to the processes."""
    audio, clips = wav(conversation), {"Reader": speech_clips[1]}
    results = model.transcribe_many([audio], processes=1, diarize=True, voices=clips, temperature=0.0)
    ((_, outcome),) = results
    assert isinstance(outcome, choral.Transcript)
    assert [speaker.name for speaker in outcome.speakers] == ["Speaker 1", "Reader"]
    assert {segment.speaker for segment in outcome.segments} == {"Speaker 1", "Reader"}
    with pytest.raises(UsageError, match="no effect without diarize"):
        model.transcribe(audio, voices={"Anna": "not read"})


def test_silence_has_no_speakers(model: choral.Model) -> None:
    transcript = model.transcribe(np.zeros(2 * RATE, np.int16), OPTIONS)
    assert (transcript.segments, transcript.speakers, transcript.turns) == ((), (), ())
    assert formats.render(transcript, "rttm") == ""
    assert "speakers" not in transcript_to_json(transcript)


def test_cancel_and_failure(
    model: choral.Model, conversation: npt.NDArray[np.int16], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Recording.open(np.tile(conversation, 4)) as recording:
        transcription = model.begin(recording, OPTIONS)
        transcription.cancel()
        with pytest.raises(CancelledError):
            list(transcription)
        assert transcription.transcript().segments == ()

        def fail() -> SpeakerNetworks:
            raise DownloadFailed("no network")

        monkeypatch.setattr(diarized, "load_networks", fail)
        with pytest.raises(DownloadFailed, match="no network"):
            model.transcribe(recording, OPTIONS)


def test_formats_name_the_speaker() -> None:
    words = [choral.Word(" a", 0.0, 0.1, 1.0, speaker="Anna"), choral.Word(" b", 0.2, 0.3, 1.0, speaker="B & <C>")]
    spoken = [
        Segment(i, 0, w.start, w.end, w.text, (), 0, 0, 1, 0, (w,), speaker=w.speaker) for i, w in enumerate(words)
    ]
    transcript = choral.Transcript(" a b", tuple(spoken), "en", None, 2.0)
    assert formats.text(transcript) == "Anna: a\nB & <C>: b\n"
    assert "00:00:00,000 --> 00:00:00,100\nAnna: a\n" in formats.srt(transcript)
    assert "<v B &amp; &lt;C&gt;>b\n" in formats.vtt(transcript)
    assert formats.tsv(transcript).endswith("200\t300\tB & <C>: b\n")
    lines = SubtitleOptions(max_line_width=40, max_line_count=2)
    assert formats.srt(transcript, lines).count("-->") == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"speakers": 2}, "no effect without diarize"),
        ({"diarize": True, "speakers": (5, 2)}, "lowest and the highest"),
        ({"diarize": True, "speakers": ()}, "lowest and the highest"),
        ({"diarize": True, "speakers": (1, 2, 3)}, "at most 2"),
        ({"diarize": True, "speakers": 0}, "from 1 to 100"),
        ({"diarize": True, "channels": "split"}, "keeps speakers apart by itself"),
    ],
)
def test_wrong_options(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        TranscribeOptions.of(**options)
