"""benchmarks/live.py: timing of words, final texts against their deltas, and wrong arguments."""

from __future__ import annotations

import numpy as np
import pytest

from choral.cli.bench import read_counts
from choral.errors import UsageError
from live import MAX_SESSIONS, Spread
from support.live_session import CHUNK_S, LiveSession, TextEvent, TimedWord, delays_s, delta_words, join_with_silence

DELTAS = [
    TextEvent("a", "And so,", 2.0),
    TextEvent("a", " my fel", 3.0),
    TextEvent("a", "low", 4.0),
    TextEvent("b", "Ask not", 7.0),
]


def test_a_word_arrives_with_its_last_letter() -> None:
    words = [(word.text, word.at_s) for word in delta_words(DELTAS)]
    assert words == [("and", 2.0), ("so", 2.0), ("my", 3.0), ("fellow", 4.0), ("ask", 7.0), ("not", 7.0)]


def test_delays_of_words_that_were_spoken_and_received() -> None:
    spoken = [TimedWord(text, at_s) for text, at_s in (("and", 0.5), ("no", 0.7), ("my", 1.0), ("fellow", 1.5))]
    assert delays_s(spoken, delta_words(DELTAS)) == [1.5, 2.0, 2.5]


def test_final_text_must_be_its_deltas_joined() -> None:
    session = LiveSession((), deltas=list(DELTAS), completed={"a": TextEvent("a", "And so, my fellow", 5.0)})
    assert session.is_faithful
    session.completed["b"] = TextEvent("b", "Ask not.", 8.0)
    assert not session.is_faithful


def test_samples_are_timed_by_their_chunk() -> None:
    clip, starts = join_with_silence([np.ones(16_000, np.int16)])
    assert clip[starts[0] - 1 : starts[0] + 1].tolist() == [0, 1]
    session = LiveSession(starts, sent_s=[10.0 + CHUNK_S * number for number in range(27)])
    assert session.sent_at_s(0) == 10.0
    assert session.sent_at_s(starts[0]) == 10.5
    assert session.sent_at_s(10**9) == pytest.approx(12.6)


def test_spread_and_session_counts() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, pytest.approx(2.9), 3)
    assert read_counts("sessions", "1, 20", MAX_SESSIONS, "1,5,20") == (1, 20)
    for wrong in ("", "0", "1,x", "1001"):
        with pytest.raises(UsageError, match="sessions is"):
            read_counts("sessions", wrong, MAX_SESSIONS, "1,5,20")
