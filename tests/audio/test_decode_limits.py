"""Files of some kilobytes that declare extreme rates and channels are refused before they take up a core."""

from __future__ import annotations

import time

import pytest

from choral.audio.recording import Recording
from choral.errors import AudioTooLarge
from dense_flac import flac_of_silence


def test_rate_times_channels_is_limited() -> None:
    body = flac_of_silence(655_350, "7.1", 2)
    assert len(body) < 15_000
    start_s = time.process_time()
    with pytest.raises(AudioTooLarge, match=r"655,350 Hz in 8 channels is over the limit .* convert it to 48 kHz"):
        Recording.open(body)
    assert time.process_time() - start_s < 1
    with Recording.open(flac_of_silence(192_000, "7.1", 0.5)) as recording:
        assert recording.duration == pytest.approx(0.5, abs=0.2)


def test_rate_times_channels_times_seconds_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("choral.audio.recording.MAX_EXTRA_VALUES", 500_000)
    with pytest.raises(
        AudioTooLarge, match=r"too long for its 1,\d{3},\d{3} values per second .* convert it to 48 kHz"
    ):
        Recording.open(flac_of_silence(655_350, "stereo", 2))
    Recording.open(flac_of_silence(655_350, "stereo", 0.3)).close()  # short enough
    Recording.open(flac_of_silence(48_000, "7.1", 3)).close()  # an ordinary rate
