"""Speakers of words and segments from turns."""

from __future__ import annotations

from choral.diarization import Diarization, SpeakerTurn
from choral.speakers.assignment import TurnIndex, assign_speakers
from choral.transcript import Segment, Word


def diarization(*turns: tuple[float, float, str]) -> Diarization:
    return Diarization(tuple(SpeakerTurn(*turn) for turn in turns), (), 100)


def segment(words: list[tuple[str, float, float]] | None, start: float = 0, end: float = 10) -> Segment:
    spoken = None if words is None else tuple(Word(text, *times, 0.9) for text, *times in words)
    text = "".join(word.text for word in spoken) if spoken else " text"
    return Segment(7, 0, start, end, text, (1, 2, 3), 0.0, -0.2, 1.1, 0.0, spoken, (-0.1, -0.2, -0.3))


def test_segments_are_split_where_the_speaker_changes() -> None:
    words = [(" How", 0, 0.4), (" are", 0.4, 0.7), (" you?", 0.7, 1.2), (" Fine,", 1.5, 2), (" thanks.", 2, 2.6)]
    found = diarization((0, 1.3, "A"), (1.4, 2.7, "B"))
    first, second = assign_speakers([segment(words, 0, 2.6)], found)
    assert (first.id, first.speaker, first.text, first.start, first.end) == (0, "A", " How are you?", 0, 1.2)
    assert (second.id, second.speaker, second.text, second.start, second.end) == (1, "B", " Fine, thanks.", 1.5, 2.6)
    assert [word.speaker for word in (first.words or ()) + (second.words or ())] == ["A", "A", "A", "B", "B"]
    assert first.tokens + second.tokens == (1, 2, 3)
    assert (first.token_logprobs or ()) + (second.token_logprobs or ()) == (-0.1, -0.2, -0.3)


def test_a_segment_of_one_speaker_stays_whole() -> None:
    whole = segment([(" One", 0.1, 0.5), (" two.", 0.5, 1)], 0, 1.2)
    (found,) = assign_speakers([whole], diarization((0, 5, "A")))
    assert (found.start, found.end, found.text, found.tokens, found.speaker) == (0, 1.2, whole.text, whole.tokens, "A")


def test_without_words_a_segment_goes_to_whoever_speaks_longest_in_it() -> None:
    found = assign_speakers([segment(None, 0, 4), segment(None, 4, 6)], diarization((0, 1, "A"), (1, 5, "B")))
    assert [(each.id, each.speaker) for each in found] == [(0, "B"), (1, "B")]


def test_words_outside_all_turns_go_to_the_nearest() -> None:
    turns = TurnIndex(diarization((1, 2, "A"), (6, 7, "B")).turns)
    assert turns.speaker(0, 0.5) == "A"
    assert turns.speaker(2.5, 3) == "A"
    assert turns.speaker(5, 5.5) == "B"
    assert turns.speaker(50, 51) == "B"


def test_a_word_without_duration_has_a_speaker() -> None:
    turns = TurnIndex(diarization((1, 2, "A"), (2, 3, "B")).turns)
    assert turns.speaker(2.5, 2.5) == "B"


def test_overlapped_words_go_to_the_one_who_says_more() -> None:
    """B says a short word into A's long turn, then A ends and B goes on."""
    turns = TurnIndex(diarization((0, 10, "A"), (4, 4.6, "B"), (9.5, 14, "B")).turns)
    assert turns.speaker(4.1, 4.5) == "A"
    assert turns.speaker(9.6, 9.95) == "B"  # within two seconds: A 1.4 s, B 1.45 s
    assert turns.speaker(10.5, 11) == "B"


def test_a_long_turn_is_found_behind_many_short_ones() -> None:
    short = [(float(second), second + 0.1, "B") for second in range(1, 60)]
    turns = TurnIndex(diarization((0, 100, "A"), *short).turns)
    assert turns.speaker(70, 71) == "A"


def test_nobody_was_found() -> None:
    (found,) = assign_speakers([segment([(" Hm", 0, 1)])], diarization())
    assert found.speaker is None
    assert found.words is not None
    assert found.words[0].speaker is None
