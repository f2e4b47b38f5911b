"""Channels apart: each is transcribed as a recording of its own, and the segments are merged in time."""

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
from choral.audio.channel_recording import ChannelRecording
from choral.audio.growing_recording import open_growing
from choral.audio.recording import Recording
from choral.errors import AudioTooLarge, NotAudio
from choral.jobs.record import transcript_from_json, transcript_to_json
from choral.options import SubtitleOptions, TranscribeOptions
from choral.transcript import Segment
from media_files import RATE, encode, read_clip, wav

SPLIT = TranscribeOptions(channels="split", mode="batched", word_timestamps=True, temperature=0.0)
MIX = TranscribeOptions(mode="batched", word_timestamps=True, temperature=0.0)


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_en_pt, device="cpu", compute_type="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def voices(jfk: Path, speech_clips: list[Path]) -> npt.NDArray[np.int16]:
    """[2, samples]: two speakers who talk in turn, and at once."""
    first = read_clip(jfk)
    second = np.concatenate([np.zeros(5 * RATE, np.int16), read_clip(speech_clips[0])])
    n_samples = max(first.size, second.size)
    return np.stack([np.pad(voice, (0, n_samples - voice.size)) for voice in (first, second)])


def stereo(voices: npt.NDArray[np.int16]) -> bytes:
    return wav(voices.T.reshape(-1), n_channels=2)


def shape_of(segment: Segment) -> tuple[object, ...]:
    words = [(word.text, word.start, word.end) for word in segment.words or ()]
    return segment.start, segment.end, segment.text, words


def test_each_channel_is_a_recording_of_its_own(model: choral.Model, voices: npt.NDArray[np.int16]) -> None:
    alone = [model.transcribe(voice, MIX) for voice in voices]
    reported: list[Segment] = []
    progress: list[tuple[float, float]] = []
    transcript = model.transcribe(
        stereo(voices), SPLIT, on_segment=reported.append, on_progress=lambda *at: progress.append(at)
    )
    for channel, expected in enumerate(alone, 1):
        found = [segment for segment in transcript.segments if segment.channel == channel]
        assert found, "both voices have text"
        assert [shape_of(segment) for segment in found] == [shape_of(segment) for segment in expected.segments]
    assert list(transcript.segments) == sorted(transcript.segments, key=lambda segment: segment.start) == reported
    assert [segment.id for segment in transcript.segments] == list(range(len(transcript.segments)))
    assert {word.channel for word in transcript.words} == {1, 2}
    assert transcript.duration == alone[0].duration == voices.shape[1] / RATE
    assert transcript.text == "".join(segment.text for segment in transcript.segments)
    assert progress == sorted(progress)
    assert progress[-1] == (transcript.duration, transcript.duration)
    assert transcript_from_json(transcript_to_json(transcript)) == transcript
    assert formats.verbose_fields(transcript)["words"][-1]["channel"] == transcript.segments[-1].channel


def test_arrays_recordings_and_processes_give_the_same(model: choral.Model, voices: npt.NDArray[np.int16]) -> None:
    options = TranscribeOptions(channels="split", temperature=0.0, max_tokens=12)
    expected = [(segment.channel, *shape_of(segment)) for segment in model.transcribe(stereo(voices), options).segments]
    assert {channel for channel, *_ in expected} == {1, 2}
    with Recording.open(stereo(voices), channels="split") as recording:
        inputs = [stereo(voices), voices.astype(np.float32) / 32768, recording]
        for processes in (0, 1):
            for _, outcome in model.transcribe_many(inputs, options, processes=processes):
                assert not isinstance(outcome, Exception), outcome
                assert [(segment.channel, *shape_of(segment)) for segment in outcome.segments] == expected


def test_mono_is_one_channel_and_silence_has_a_warning(model: choral.Model, voices: npt.NDArray[np.int16]) -> None:
    mono = model.transcribe(wav(voices[0]), SPLIT)
    assert {segment.channel for segment in mono.segments} == {1}
    half_silent = model.transcribe(np.stack([voices[0], np.zeros_like(voices[0])]), SPLIT)
    assert [shape_of(segment) for segment in half_silent.segments] == [shape_of(segment) for segment in mono.segments]
    assert half_silent.warnings == ("channel 2: the audio is silent: nothing to transcribe",)
    mixed = model.transcribe(wav(voices[0]), MIX)
    assert {segment.channel for segment in mixed.segments} == {None}
    assert "channel" not in formats.verbose_json(mixed)


def test_formats_name_the_channel() -> None:
    segments = [
        Segment(0, 0, 0.0, 1.0, " Hello.", (), 0.0, 0.0, 1.0, 0.0, channel=1),
        Segment(1, 0, 0.5, 2.0, " Good day.", (), 0.0, 0.0, 1.0, 0.0, channel=2),
    ]
    transcript = choral.Transcript(" Hello. Good day.", tuple(segments), "en", None, 2.0)
    assert formats.text(transcript) == "Channel 1: Hello.\nChannel 2: Good day.\n"
    assert "1\n00:00:00,000 --> 00:00:01,000\nChannel 1: Hello.\n" in formats.srt(transcript)
    assert "00:00.500 --> 00:02.000\n<v Channel 2>Good day.\n" in formats.vtt(transcript)
    assert formats.tsv(transcript).endswith("500\t2000\tChannel 2: Good day.\n")
    assert [segment["channel"] for segment in json.loads(formats.verbose_json(transcript))["segments"]] == [1, 2]
    words = [choral.Word(" a", 0.0, 0.1, 1.0, channel=1), choral.Word(" b", 0.2, 0.3, 1.0, channel=2)]
    spoken = [Segment(i, 0, 0.0, 1.0, w.text, (), 0, 0, 1, 0, (w,), channel=w.channel) for i, w in enumerate(words)]
    lines = SubtitleOptions(max_line_width=40, max_line_count=2)
    assert formats.srt(choral.Transcript(" a b", tuple(spoken), "en", None, 2.0), lines).count("-->") == 2


@pytest.mark.parametrize("n_channels", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("max_memory_s", [100.0, 0.5])
def test_channels_are_decoded_apart(voices: npt.NDArray[np.int16], n_channels: int, max_memory_s: float) -> None:
    """At 16 kHz, every channel has exactly the samples of the file, in memory and on disk, complete and growing."""
    channels = np.stack([np.roll(voices[0], 1000 * i) // (i + 1) for i in range(n_channels)])
    media = wav(channels.T.reshape(-1), n_channels=n_channels)
    whole = Recording.open(media, channels="split", max_memory_s=max_memory_s)
    growing = open_growing(media, channels="split", max_memory_s=max_memory_s)
    with whole, growing:
        for recording in (growing, whole):
            assert recording.n_channels == n_channels
            for index, expected in enumerate(channels):
                channel = ChannelRecording(recording, index)
                found = channel.samples(20_000, 60_000)
                np.testing.assert_array_equal(found * 32768, expected[20_000:60_000])
                assert (channel.n_samples, channel.peak * 32768) == (expected.size, np.abs(expected).max())
        assert growing.summary == whole.summary
        np.testing.assert_allclose(whole.samples(0, 1000), channels[:, :1000].mean(axis=0) / 32768, atol=1e-6)


def test_channels_that_change_keep_their_number(voices: npt.NDArray[np.int16]) -> None:
    """The second link of a chained Ogg file is mono: it is heard in both channels."""
    clip = voices[0, : 2 * RATE]
    media = encode(clip, "ogg", "flac", layout="stereo") + encode(clip, "ogg", "flac")
    with Recording.open(media, channels="split") as recording:
        assert (recording.n_channels, recording.n_samples) == (2, 4 * RATE)
        samples = recording.read(0, 4 * RATE)
    assert np.abs(samples).max() > 0.1
    np.testing.assert_array_equal(samples[:, 0], samples[:, 1])


def test_limits(model: choral.Model, voices: npt.NDArray[np.int16]) -> None:
    with pytest.raises(AudioTooLarge, match="9 channels, and at most 8"):
        model.transcribe(wav(np.zeros(9 * RATE, np.int16), n_channels=9), channels="split")
    with pytest.raises(AudioTooLarge, match=r"the given array has 32,000 channels"):
        model.transcribe(np.zeros((32_000, 2), np.int16), channels="split")
    with pytest.raises(AudioTooLarge, match="longer than 20 s in its 2 channels together"):
        Recording.open(stereo(voices), channels="split", max_duration_s=20)
    with Recording.open(stereo(voices), max_duration_s=20):
        pass
    with pytest.raises(NotAudio):
        model.transcribe(b"no audio" * 100, channels="split")


def test_cancel(model: choral.Model, voices: npt.NDArray[np.int16]) -> None:
    options = TranscribeOptions(channels="split", temperature=0.0, max_tokens=12)  # a window of each after the other
    with Recording.open(np.tile(voices, 8), channels="split") as recording:
        transcription = model.begin(recording, options)
        segments = iter(transcription)
        next(segments)
        transcription.cancel()
        with pytest.raises(CancelledError):
            list(segments)
        early = model.begin(recording, options)
        early.cancel()
        with pytest.raises(CancelledError):
            list(early)
