"""Assignment of speakers to the words and segments of a transcript.

A word goes to the speaker whose turns cover most of it, and one outside all turns to the nearest. Where two speak at
once, it is the one who says more around the word. Segments with words are split where the speaker changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from choral.diarization import Diarization, SpeakerTurn
from choral.transcript import Segment, Word

AROUND_S = 1.0  # before and after a word, to decide between two who speak at once
MIN_SHARE = 0.05  # of a word, by which one speaker has to cover more of it than another


class TurnIndex:
    """Turns by time; turns before a start that still reach it are found through the longest turn."""

    def __init__(self, turns: Sequence[SpeakerTurn]) -> None:
        self._turns = sorted(turns, key=lambda turn: turn.start)
        self._starts = [turn.start for turn in self._turns]
        self._longest_s = max((turn.duration for turn in turns), default=0.0)

    def speaker(self, start: float, end: float) -> str | None:
        """Who speaks in this span; None without any turns."""
        covered = self._covered(start, end)
        if not covered:
            return self._nearest((start + end) / 2)
        most = max(covered.values())
        candidates = [name for name, seconds in covered.items() if seconds >= most - MIN_SHARE * (end - start)]
        if len(candidates) == 1:
            return candidates[0]
        around = self._covered(start - AROUND_S, end + AROUND_S)
        return max(candidates, key=lambda name: around[name])

    def _between(self, start: float, end: float) -> Iterator[SpeakerTurn]:
        first = bisect_left(self._starts, start - self._longest_s)
        for turn in self._turns[first : bisect_left(self._starts, end)]:
            if turn.end > start:
                yield turn

    def _covered(self, start: float, end: float) -> dict[str, float]:
        """The seconds of the span in which each speaker speaks."""
        end = max(end, start + 1e-3)  # words of no duration exist
        covered: dict[str, float] = defaultdict(float)
        for turn in self._between(start, end):
            covered[turn.speaker] += min(end, turn.end) - max(start, turn.start)
        return covered

    def _nearest(self, time: float) -> str | None:
        if not self._turns:
            return None
        after = bisect_left(self._starts, time)
        nearby = [*self._turns[max(0, after - 8) : after + 1]]
        return min(nearby, key=lambda turn: max(turn.start - time, time - turn.end)).speaker


def assign_speakers(segments: Sequence[Segment], diarization: Diarization) -> tuple[Segment, ...]:
    """The segments with speakers, numbered anew; the texts of all together are the same."""
    turns = TurnIndex(diarization.turns)
    parts = [part for segment in segments for part in _with_speakers(segment, turns)]
    return tuple(replace(part, id=number) for number, part in enumerate(parts))


def _with_speakers(segment: Segment, turns: TurnIndex) -> list[Segment]:
    if not segment.words:
        return [replace(segment, speaker=turns.speaker(segment.start, segment.end))]
    words = [replace(word, speaker=turns.speaker(word.start, word.end)) for word in segment.words]
    runs = [tuple(run) for _, run in groupby(words, key=lambda word: word.speaker)]
    if len(runs) == 1:
        return [replace(segment, words=runs[0], speaker=runs[0][0].speaker)]
    return [_part(segment, run, is_last=run is runs[-1]) for run in runs]


def _part(segment: Segment, words: tuple[Word, ...], is_last: bool) -> Segment:
    """The tokens of a segment are not divided: they stay with its last part, the others have none."""
    return replace(
        segment,
        start=words[0].start,
        end=words[-1].end,
        text="".join(word.text for word in words),
        words=words,
        speaker=words[0].speaker,
        tokens=segment.tokens if is_last else (),
        token_logprobs=segment.token_logprobs and (segment.token_logprobs if is_last else ()),
    )
