"""`choral bench live`: how words are timed, what counts as faithful, and arguments that cannot be right."""

from __future__ import annotations

import numpy as np
import pytest

from choral.bench.live.delays import TimedWord, delays_s, shown_words
from choral.bench.live.measure import Spread
from choral.bench.live.speaker import CHUNK_S, Shown, Visit, laid_out
from choral.cli.bench_live import read_sessions
from choral.errors import UsageError

PIECES = [Shown("a", "And so,", 2.0), Shown("a", " my fel", 3.0), Shown("a", "low", 4.0), Shown("b", "Ask not", 7.0)]


def test_a_word_is_there_with_its_last_letter() -> None:
    words = [(word.text, word.at_s) for word in shown_words(PIECES)]
    assert words == [("and", 2.0), ("so", 2.0), ("my", 3.0), ("fellow", 4.0), ("ask", 7.0), ("not", 7.0)]


def test_delays_are_of_words_that_were_said_and_shown() -> None:
    said = [TimedWord(text, at_s) for text, at_s in (("and", 0.5), ("no", 0.7), ("my", 1.0), ("fellow", 1.5))]
    assert delays_s(said, shown_words(PIECES)) == [1.5, 2.0, 2.5]


def test_a_text_must_be_its_pieces() -> None:
    visit = Visit((), shown=list(PIECES), completed={"a": Shown("a", "And so, my fellow", 5.0)})
    assert visit.is_faithful
    visit.completed["b"] = Shown("b", "Ask not.", 8.0)
    assert not visit.is_faithful


def test_samples_are_timed_by_the_chunk_they_were_sent_in() -> None:
    sound, starts = laid_out([np.ones(16_000, np.int16)])
    assert sound[starts[0] - 1 : starts[0] + 1].tolist() == [0, 1]
    visit = Visit(starts, sent_s=[10.0 + CHUNK_S * number for number in range(27)])
    assert visit.time_of(0) == 10.0
    assert visit.time_of(starts[0]) == 10.5
    assert visit.time_of(10**9) == pytest.approx(12.6)


def test_medians_and_counts() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, pytest.approx(2.9), 3)
    assert read_sessions("1, 20") == (1, 20)
    for wrong in ("", "0", "1,x", "1001"):
        with pytest.raises(UsageError, match="sessions is"):
            read_sessions(wrong)
