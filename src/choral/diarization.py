"""Who spoke when: the public result of speaker diarization. All times are in seconds from the start of the audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from choral.errors import UsageError

EMBEDDING_SIZE = 256
MAX_SPEAKER_NAME = 64  # characters


@dataclass(frozen=True)
class SpeakerTurn:
    """What one speaker says without a pause. Turns of different speakers overlap where they speak at once."""

    start: float
    end: float
    speaker: str

    @property
    def duration(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Speaker:
    name: str  # "Speaker 1" is the first who speaks
    total_s: float  # of speech, overlapped speech included
    embedding: tuple[float, ...]  # of unit length: the cosine of two is their similarity


@dataclass(frozen=True)
class Diarization:
    turns: tuple[SpeakerTurn, ...]  # by start
    speakers: tuple[Speaker, ...]  # by their first turn
    duration: float

    @property
    def overlaps(self) -> tuple[tuple[float, float], ...]:
        """The spans in which two or more speakers speak, as (start, end)."""
        # At equal times, ends come first: turns that touch do not overlap.
        edges = sorted([(turn.start, 1) for turn in self.turns] + [(turn.end, -1) for turn in self.turns])
        spans: list[tuple[float, float]] = []
        n_speaking, start = 0, 0.0
        for time, change in edges:
            n_before, n_speaking = n_speaking, n_speaking + change
            if n_before < 2 <= n_speaking:
                start = time
            elif n_speaking < 2 <= n_before and time > start:
                spans.append((start, time))
        return tuple(spans)

    def renamed(self, names: Mapping[str, str]) -> Diarization:
        """With these names instead of the found ones; those that are not in it stay."""
        return replace(
            self,
            turns=tuple(replace(turn, speaker=names.get(turn.speaker, turn.speaker)) for turn in self.turns),
            speakers=tuple(replace(speaker, name=names.get(speaker.name, speaker.name)) for speaker in self.speakers),
        )


def check_speaker_names(option: str, names: Sequence[str]) -> None:
    """Raise `UsageError` for names that are empty, too long, not printable or not distinct."""
    for name in names:
        if not name.strip() or len(name) > MAX_SPEAKER_NAME or not name.isprintable():
            shown = repr(name[: MAX_SPEAKER_NAME + 1])
            raise UsageError(f"{option} has the name {shown}; a name has 1 to {MAX_SPEAKER_NAME} printable characters")
    if len(set(names)) < len(names):
        raise UsageError(f"{option} has a name twice; the names of speakers must differ")
