"""One channel of a recording that keeps its channels apart, as a recording of its own.

It reads the samples of the whole recording, which must stay open and may still grow; its `cancel_event` counts.
Warnings are those of the whole recording, not of its channels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choral.audio.recording import Recording, RecordingSummary


class ChannelRecording(Recording):
    def __init__(self, recording: Recording, index: int) -> None:
        super().__init__(ChannelSamples(recording, index), n_samples=0, channel_peaks=(), name=recording.name)
        self._recording, self._index = recording, index

    @property
    def summary(self) -> RecordingSummary:
        whole = self._recording.summary
        return RecordingSummary(whole.n_samples, (whole.channel_peaks[self._index],))

    @property
    def channel_peaks(self) -> tuple[float, ...]:
        return (self._recording.channel_peaks[self._index],)

    @property
    def is_complete(self) -> bool:
        return self._recording.is_complete

    @property
    def estimated_duration(self) -> float | None:
        return self._recording.estimated_duration

    def available(self, n_samples: int) -> int:
        return self._recording.available(n_samples)


class ChannelSamples:
    def __init__(self, recording: Recording, index: int) -> None:
        self._recording, self._index = recording, index

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        samples = self._recording.read(start, stop)
        return samples if samples.ndim == 1 else np.ascontiguousarray(samples[:, self._index])

    def close(self) -> None:
        """Does nothing: the owner of the whole recording closes it."""
