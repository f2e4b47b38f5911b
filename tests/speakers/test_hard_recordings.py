"""Recordings that are easily misheard: music, turns of 30 ms, a wrong number of speakers, ten speakers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import choral
from choral.audio.recording import Recording
from choral.bench.audio_effects import another_voice, applause, music
from choral.bench.diarization_error import diarization_error
from choral.remote.speech_samples import SpeechSample
from choral.speakers.diarize import diarize_recording
from choral.speakers.networks import SpeakerNetworks
from conversations import RATE, Conversation, in_turn, read_samples


@pytest.mark.parametrize("sound", [music, applause])
def test_sounds_without_speech_have_no_speakers(networks: SpeakerNetworks, sound: Callable[..., np.ndarray]) -> None:
    assert choral.diarize(sound(12 * RATE, np.random.default_rng(0))).turns == ()


def test_turns_of_30_ms(networks: SpeakerNetworks, librivox: tuple[SpeechSample, ...], jfk: Path) -> None:
    """Too short to tell voices apart: what is found is one or two speakers, who speak all the time."""
    voices = read_samples(librivox[0].path), read_samples(jfk)
    n = 30 * RATE // 1000
    n_turns = min(voice.size for voice in voices) // n
    samples = np.concatenate([voices[turn % 2][turn * n : (turn + 1) * n] for turn in range(n_turns)])
    found = choral.diarize(samples)
    assert 1 <= len(found.speakers) <= 2
    covered_s = sum(turn.duration for turn in found.turns) - sum(end - start for start, end in found.overlaps)
    assert covered_s == pytest.approx(samples.size / RATE, rel=0.1)


def test_too_many_speakers_divide_voices_but_never_join_them(
    networks: SpeakerNetworks, conversation: Conversation
) -> None:
    with Recording.open(conversation.samples) as recording:
        found = diarize_recording(recording, networks, (5, 5))
    assert len(found.speakers) == 5
    for speaker in found.speakers:
        spoken = [turn for turn in found.turns if turn.speaker == speaker.name]
        shares = {
            name: sum(
                _common_s(turn, other) for turn in spoken for other in conversation.turns if other.speaker == name
            )
            for name in ("reader", "president")
        }
        assert min(shares.values()) < 0.1 * max(shares.values())


def _common_s(turn: choral.SpeakerTurn, other: choral.SpeakerTurn) -> float:
    return max(0.0, min(turn.end, other.end) - max(turn.start, other.start))


@pytest.mark.slow
def test_ten_speakers(
    networks: SpeakerNetworks,
    librivox: tuple[SpeechSample, ...],
    jfk: Path,
    prompts: Callable[[str, int], tuple[Path, ...]],
) -> None:
    """Seven voices, and three of them slower or faster; each speaks twice. Two that are similar may be one."""
    voices = {
        language: [read_samples(path) for path in prompts(language, 2)] for language in ("en", "es", "fr", "it", "ru")
    }
    voices["reader"] = [read_samples(librivox[number].path) for number in (0, 1)]
    president = read_samples(jfk)
    voices["president"] = [president[: 5 * RATE], president[5 * RATE :]]
    for name, factor in (("es", 0.8), ("president", 1.3), ("reader", 0.8)):
        voices[f"{name} at {factor}"] = [another_voice(samples, factor) for samples in voices[name]]
    talk = in_turn([(name, clips[number]) for number in (0, 1) for name, clips in voices.items()])
    given, alone = choral.diarize(talk.samples, speakers=10), choral.diarize(talk.samples)
    assert len(given.speakers) == 10
    assert 9 <= len(alone.speakers) <= 10
    error = diarization_error(talk.turns, given.turns, [(0.0, given.duration)], collar_s=0.25)
    assert error.confusion_s == 0
    assert error.false_alarm_s < 0.5
