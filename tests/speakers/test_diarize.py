"""Diarization with the real networks: two voices in turn, one voice, no voice, hints, and the networks themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import choral
from choral.audio.growing_recording import open_growing
from choral.audio.recording import Recording
from choral.bench.diarization_error import diarization_error
from choral.diarization import Diarization, SpeakerTurn
from choral.errors import ModelCorrupt, UsageError
from choral.speakers.diarize import diarize_recording, speaker_bounds
from choral.speakers.embedding import CHUNK_FRAMES, SpeakerFrames
from choral.speakers.fbank import fbank
from choral.speakers.networks import EMBEDDING_FILE, FRAME_SIZE, SEGMENTATION_FILE, SpeakerNetworks
from conversations import RATE, Conversation, read_samples


def test_two_voices_are_told_apart(found: Diarization, conversation: Conversation) -> None:
    samples, reference = conversation.samples, conversation.turns
    assert [speaker.name for speaker in found.speakers] == ["Speaker 1", "Speaker 2"]
    assert found.duration == pytest.approx(samples.size / RATE)
    error = diarization_error(reference, found.turns, [(0.0, found.duration)], collar_s=0.25)
    assert error.confusion_s == 0
    assert error.false_alarm_s < 0.3
    assert error.miss_s < 3  # the reference has the pauses within sentences as speech
    starts = [turn.start for turn in found.turns]
    assert starts == sorted(starts)
    for speaker in found.speakers:
        of_turns = sum(turn.duration for turn in found.turns if turn.speaker == speaker.name)
        assert speaker.total_s == pytest.approx(of_turns)
        assert np.linalg.norm(speaker.embedding) == pytest.approx(1, rel=1e-5)
    one, other = (np.array(speaker.embedding) for speaker in found.speakers)
    assert one @ other < 0.4


def test_a_hint_is_followed_where_it_is_wrong(networks: SpeakerNetworks, conversation: Conversation) -> None:
    with Recording.open(conversation.samples) as recording:
        assert len(diarize_recording(recording, networks, (1, 1)).speakers) == 1
        assert 2 <= len(diarize_recording(recording, networks, (4, 4)).speakers) <= 4


def test_a_growing_recording_gives_the_same(networks: SpeakerNetworks, jfk: Path) -> None:
    """One voice stays one; and decoding need not have ended."""
    with open_growing(jfk) as growing:
        found = diarize_recording(growing, networks)
    assert found == choral.diarize(jfk)
    assert len(found.speakers) == 1
    assert found.overlaps == ()


@pytest.mark.parametrize("seconds", [0.01, 12])
def test_nobody_speaks(networks: SpeakerNetworks, seconds: float) -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, int(seconds * RATE)).astype(np.float32)
    for samples in (noise, noise * 0):
        assert choral.diarize(samples) == Diarization((), (), samples.size / RATE)


def test_statistics_over_all_frames_are_the_networks_own(networks: SpeakerNetworks, jfk: Path) -> None:
    """Stopping the network before its statistics, and taking them here, changes nothing."""
    features = fbank(read_samples(jfk)[: 4 * RATE])
    features -= features.mean(axis=0)
    expected = networks._embedding.run(["embs"], {"feats": features[None]})[0][0]
    frames = networks.speaker_frames(features)
    embedding = networks.embed(frames, np.ones(len(frames), np.float32))
    np.testing.assert_allclose(embedding, expected / np.linalg.norm(expected), atol=1e-4)


def test_frames_end_with_the_recording(networks: SpeakerNetworks, jfk: Path) -> None:
    """The last window is padded, and speech in it may seem to go on after the last chunk."""
    with Recording.open(read_samples(jfk)[: 2 * RATE]) as recording:
        frames = SpeakerFrames(recording, networks)
        assert frames.between(0, 3 * CHUNK_FRAMES).shape == (25, FRAME_SIZE)
        assert frames.between(CHUNK_FRAMES, 2 * CHUNK_FRAMES).shape == (0, FRAME_SIZE)


def test_damaged_networks_are_named(tmp_path: Path) -> None:
    for name in (SEGMENTATION_FILE, EMBEDDING_FILE):
        (tmp_path / name).write_bytes(b"not a network")
    with pytest.raises(ModelCorrupt, match=SEGMENTATION_FILE):
        SpeakerNetworks(tmp_path)


def test_bounds() -> None:
    assert speaker_bounds(None) == (1, None)
    assert speaker_bounds(3) == speaker_bounds((3,)) == (3, 3)
    assert speaker_bounds((2, 5)) == (2, 5)
    for wrong in (0, -1, True, (5, 2), (), (1, 2, 3), "2", 101, (0, 3), 2.0):
        with pytest.raises(UsageError, match="speakers is"):
            speaker_bounds(wrong)  # type: ignore[arg-type]


def test_overlaps_of_turns() -> None:
    turns = (SpeakerTurn(0, 4, "a"), SpeakerTurn(3, 6, "b"), SpeakerTurn(3.5, 5, "c"), SpeakerTurn(6, 7, "a"))
    assert Diarization(turns, (), 7).overlaps == ((3, 5),)
