"""benchmarks/live.py: timing of words, final texts against their deltas, and wrong arguments."""

from __future__ import annotations

import numpy as np
import pytest

from choral.bench.clips import AudioClip
from choral.cli.bench import read_counts
from choral.errors import UsageError
from live import MAX_SESSIONS, LiveLoad, LiveReport, LiveSettings, ReferenceClip, Spread, _choose_clips, live_table
from support.live_session import CHUNK_S, LiveSession, TextEvent, TimedWord, delays_s, delta_words, join_with_silence
from support.server_cpu import ServerCpu

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


def test_sessions_start_with_different_clips_and_are_long_enough() -> None:
    clips = [ReferenceClip(AudioClip(np.zeros(16_000 * n, np.float32), None, None), "", ()) for n in (3, 4, 5)]
    assert _choose_clips(clips, 0, 7.0) == (0, 1)
    assert _choose_clips(clips, 5, 14.0) == (2, 0, 1)


def test_cpu_time_is_that_of_a_second_of_one_session() -> None:
    used = ServerCpu(server=6.0, sessions=60.0).since(ServerCpu(server=1.0, sessions=10.0)).per(5_000.0)
    assert used == ServerCpu(server=0.001, sessions=0.01)
    nothing = Spread.of([])
    load = LiveLoad(300, nothing, nothing, is_faithful=True, live=None, cpu=used, clients_cpu=0.003, files=None)
    table = live_table(LiveReport((load,), nothing, None))
    assert "1.0 ms   10.0 ms    0.0 ms  0.0 ms     3.0 ms           4.2" in table


def test_processes_of_clients_follow_the_number_of_sessions() -> None:
    assert [LiveSettings().n_clients(n) for n in (1, 50, 51, 300)] == [1, 1, 2, 6]
    assert LiveSettings(clients=3).n_clients(300) == 3
