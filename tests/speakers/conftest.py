"""Fixtures of the speaker tests."""

from __future__ import annotations

from pathlib import Path

import pytest

import choral
from choral.diarization import Diarization
from choral.remote.speech_samples import SpeechSample
from choral.speakers.networks import SpeakerNetworks
from conversations import RATE, Conversation, in_turn, read_samples


@pytest.fixture(scope="session")
def conversation(librivox: tuple[SpeechSample, ...], jfk: Path) -> Conversation:
    """A reader and a president in turn, with half a second between them."""
    reader = [read_samples(librivox[number].path) for number in (0, 1, 4)]
    president = read_samples(jfk)
    return in_turn(
        [
            ("reader", reader[0]),
            ("president", president[: 5 * RATE]),
            ("reader", reader[1]),
            ("president", president[5 * RATE :]),
            ("reader", reader[2]),
        ]
    )


@pytest.fixture(scope="session")
def found(networks: SpeakerNetworks, conversation: Conversation) -> Diarization:
    return choral.diarize(conversation.samples)
