"""The diarization error rate (DER) as NIST defines it: missed speech, false alarms and confused speakers.

Found speakers are mapped to those of the reference so that they have the most time in common. Overlapped speech counts
for each of its speakers. A collar leaves out the time around every start and end of a turn of the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choral.diarization import SpeakerTurn

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Span = tuple[float, float]


@dataclass(frozen=True)
class DiarizationError:
    """Seconds of speakers: two who speak at once for a second are two."""

    total_s: float = 0.0  # in the reference
    miss_s: float = 0.0
    false_alarm_s: float = 0.0
    confusion_s: float = 0.0

    def __add__(self, other: DiarizationError) -> DiarizationError:
        return DiarizationError(
            self.total_s + other.total_s,
            self.miss_s + other.miss_s,
            self.false_alarm_s + other.false_alarm_s,
            self.confusion_s + other.confusion_s,
        )

    @property
    def error_s(self) -> float:
        return self.miss_s + self.false_alarm_s + self.confusion_s

    def percent(self, seconds: float) -> float:
        """A part as a share of the reference; without speech in the reference, any error is 100 %."""
        return 100 * seconds / self.total_s if self.total_s else (100.0 if seconds else 0.0)

    @property
    def rate_percent(self) -> float:
        return self.percent(self.error_s)


def diarization_error(
    reference: Sequence[SpeakerTurn], found: Sequence[SpeakerTurn], scored: Sequence[Span], collar_s: float = 0.0
) -> DiarizationError:
    """`scored`: the parts of the recording that count. `collar_s` is left out on both sides of an edge."""
    edges = [edge for turn in reference for edge in (turn.start, turn.end)]
    collars = [(edge - collar_s, edge + collar_s) for edge in edges] if collar_s else []
    times = _times(reference, found, scored, collars)
    middles, durations = (times[:-1] + times[1:]) / 2, np.diff(times)
    counts = _covered(middles, scored) & ~_covered(middles, collars)
    middles, durations = middles[counts], durations[counts]
    spoken, answered = _activity(middles, reference), _activity(middles, found)
    n_spoken, n_answered = spoken.sum(axis=1), answered.sum(axis=1)
    rows, columns = best_mapping((spoken * durations[:, None]).T @ answered)
    n_right = (spoken[:, rows] & answered[:, columns]).sum(axis=1)
    return DiarizationError(
        total_s=float(durations @ n_spoken),
        miss_s=float(durations @ np.maximum(n_spoken - n_answered, 0)),
        false_alarm_s=float(durations @ np.maximum(n_answered - n_spoken, 0)),
        confusion_s=float(durations @ (np.minimum(n_spoken, n_answered) - n_right)),
    )


def matching_speakers(reference: Sequence[SpeakerTurn], found: Sequence[SpeakerTurn]) -> dict[str, str]:
    """For speakers of the reference, the one found who is taken for them: most time in common, each only once."""
    times = _times(reference, found, (), ())
    if times.size < 2:
        return {}
    middles, durations = (times[:-1] + times[1:]) / 2, np.diff(times)
    common = (_activity(middles, reference) * durations[:, None]).T @ _activity(middles, found)
    theirs, mine = _names(reference), _names(found)
    pairs = zip(*best_mapping(common), strict=True)
    return {theirs[row]: mine[column] for row, column in pairs if common[row, column] > 0}


def _names(turns: Sequence[SpeakerTurn]) -> list[str]:
    return sorted({turn.speaker for turn in turns})


def _times(
    reference: Sequence[SpeakerTurn], found: Sequence[SpeakerTurn], scored: Sequence[Span], collars: Sequence[Span]
) -> Floats:
    """All times at which anything changes, in order."""
    spans = [*((turn.start, turn.end) for turn in (*reference, *found)), *scored, *collars]
    return np.unique([time for span in spans for time in span])


def _covered(times: Floats, spans: Sequence[Span]) -> Flags:
    covered = np.zeros(times.size, np.bool_)
    for start, end in spans:
        covered[np.searchsorted(times, start) : np.searchsorted(times, end)] = True
    return covered


def _activity(times: Floats, turns: Sequence[SpeakerTurn]) -> Flags:
    """[times, speakers]"""
    names = _names(turns)
    spans = [[(turn.start, turn.end) for turn in turns if turn.speaker == name] for name in names]
    return np.stack([_covered(times, each) for each in spans], axis=1) if names else np.zeros((times.size, 0), np.bool_)


def best_mapping(common: Floats) -> tuple[list[int], list[int]]:
    """Rows and columns of the assignment with the largest sum: the Hungarian method with potentials."""
    if common.shape[0] > common.shape[1]:
        columns, rows = best_mapping(common.T)
        return rows, columns
    n_rows, n_columns = common.shape
    row_potential, column_potential = np.zeros(n_rows + 1), np.zeros(n_columns + 1)
    row_of = np.full(n_columns + 1, -1)  # of each column; the last one is where each row starts from
    for row in range(n_rows):
        row_of[-1], column = row, n_columns
        slack, came_from = np.full(n_columns, np.inf), np.full(n_columns, n_columns)
        is_used = np.zeros(n_columns + 1, np.bool_)
        while row_of[column] >= 0:
            is_used[column] = True
            current = row_of[column]
            reduced = -common[current] - row_potential[current] - column_potential[:-1]
            is_nearer = ~is_used[:-1] & (reduced < slack)
            slack[is_nearer], came_from[is_nearer] = reduced[is_nearer], column
            nearest = int(np.where(is_used[:-1], np.inf, slack).argmin())
            step = slack[nearest]
            row_potential[row_of[is_used]] += step
            column_potential[is_used] -= step
            slack[~is_used[:-1]] -= step
            column = nearest
        while column != n_columns:  # along the path, each row moves to the column found after its own
            previous = int(came_from[column])
            row_of[column] = row_of[previous]
            column = previous
    columns = [column for column in range(n_columns) if row_of[column] >= 0]
    return [int(row_of[column]) for column in columns], columns
