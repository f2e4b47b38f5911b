"""The audio buffer of a turn, and where a long turn is cut."""

from __future__ import annotations

import numpy as np

from choral.longform.words import WordTiming
from choral.server.realtime.turn import AudioBuffer, TurnCut, choose_cut


def test_buffer_appends_at_the_end_and_drops_from_the_start() -> None:
    buffer, expected = AudioBuffer(), np.zeros(0, np.int16)
    random = np.random.default_rng(0)
    for _ in range(200):
        samples = random.integers(-(2**15), 2**15, random.integers(0, 3_000), dtype=np.int16)
        buffer.append(samples)
        expected = np.concatenate([expected, samples])
        n_dropped = int(random.integers(0, 2_000))
        buffer.drop(n_dropped)
        expected = expected[n_dropped:]
        assert len(buffer) == expected.size
    assert buffer.copy().tolist() == expected.tolist()
    assert buffer.copy(10, 20).tolist() == expected[10:20].tolist()


def test_long_turns_are_cut_after_sentences() -> None:
    texts = [(" One", 1.0), (" two", 6.0), (".", 8.0), (" Three", 9.0), (" four", 10.0), (" five", 12.0)]
    starts = [0.0, *(end for _, end in texts)]
    words = [WordTiming(text, 1, start, end, 1.0) for (text, end), start in zip(texts, starts, strict=False)]
    assert choose_cut(words, 5, 4.0) == TurnCut(3, 7.0)  # in the middle of the pause
    assert choose_cut(words, 2, 4.0) == TurnCut(2, 6.0)  # no sentence has ended
    assert choose_cut(words, 5, 9.5) == TurnCut(5, 10.0)
    assert choose_cut(words, 1, 4.0) is None
