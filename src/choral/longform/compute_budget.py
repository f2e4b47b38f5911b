"""The compute budget of a chain: how many windows and sequences it may decode, in proportion to its audio.

The text decides how far a window advances and how often it is decoded again, and options can push both to extremes: a
fallback that never succeeds, or windows that advance by 20 ms. Work beyond the budget is left out, not refused: windows
keep the text they have, and advance to their end.
"""

from __future__ import annotations

from choral.audio.constants import MEL_FRAMES_PER_SECOND
from choral.errors import UsageError

# An ordinary window decodes 1 sequence, at most 26 with the default temperatures, and advances by 5 to 30 s.
MIN_WINDOWS, WINDOWS_PER_SECOND = 16, 2
MIN_SEQUENCES, SEQUENCES_PER_SECOND = 64, 16
MIN_CLIPS, CLIPS_PER_SECOND = 16, 1

EXCEEDED = (
    "the text needed more decoding attempts than the limit for audio of this length, so parts of it may be less "
    "accurate: give fewer temperatures, a smaller best_of, or less strict thresholds"
)


class ComputeBudget:
    """Counts the windows and sequences of one chain, so the result does not depend on what else is running."""

    def __init__(self, n_frames: int) -> None:
        audio_s = n_frames / MEL_FRAMES_PER_SECOND
        self._windows_left = MIN_WINDOWS + WINDOWS_PER_SECOND * audio_s
        self._sequences_left = MIN_SEQUENCES + SEQUENCES_PER_SECOND * audio_s
        self._has_refused = False

    @property
    def is_exceeded(self) -> bool:
        return self._has_refused or self.needs_whole_windows

    @property
    def needs_whole_windows(self) -> bool:
        """Whether the current window must advance by its whole length."""
        return self._windows_left < 0

    def count_window(self) -> None:
        self._windows_left -= 1

    def count_sequences(self, n: int) -> None:
        self._sequences_left -= n

    def allows_fallback(self) -> bool:
        self._has_refused |= self._sequences_left <= 0
        return self._sequences_left > 0


def require_clips(n_clips: int, n_frames: int) -> None:
    """Every clip costs a window of 30 s, however short it is."""
    max_clips = int(MIN_CLIPS + CLIPS_PER_SECOND * n_frames / MEL_FRAMES_PER_SECOND)
    if n_clips > max_clips:
        raise UsageError(
            f"clip_timestamps has {n_clips:,} clips in {n_frames / MEL_FRAMES_PER_SECOND:.0f} s of audio; "
            f"it must have at most {max_clips:,}: join neighbouring clips"
        )
