"""Recordings that grow while they are read: the same samples, waiting, errors, the end, cleanup."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from choral.audio.growing_recording import open_growing
from choral.audio.loudness import measure_loudness
from choral.audio.mel import mel_peak
from choral.audio.recording import Cancelled, Recording
from choral.errors import AudioEmpty, AudioError, AudioNotFound, AudioTooLarge, NotAudio
from gated_file import GatedFile
from media_files import Int16Samples, encode, wav

RATE = 16_000
WAIT_S = 20  # for another thread, on a busy machine


@pytest.fixture(scope="module")
def tones() -> Int16Samples:
    """100 s that get louder."""
    t = np.arange(100 * RATE)
    return (np.sin(t * 0.05) * (1_000 + t / 100)).astype(np.int16)


@pytest.fixture
def gated(tones: Int16Samples) -> Iterator[GatedFile]:
    """Delivers the first 40 s."""
    file = GatedFile(wav(tones), 40 * RATE * 2)
    yield file
    file.open_gate()


def decode_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("choral-decode")]


def eventually(condition: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return condition()


class Reader:
    """Calls a function on a thread."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.result: object = None
        self._function = function
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def is_waiting(self) -> bool:
        self._thread.join(0.1)
        return self._thread.is_alive()

    def finish(self) -> object:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return self.result

    def _run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:
            self.result = error


@pytest.mark.parametrize("max_memory_s", [1_200, 30.0, 0.0], ids=["memory", "spilled midway", "disk"])
@pytest.mark.parametrize(("container", "codec"), [("mp3", "libmp3lame"), ("flac", "flac")])
def test_equals_a_recording_that_was_decoded_before(
    tones: Int16Samples, max_memory_s: float, container: str, codec: str
) -> None:
    media = encode(tones, container, codec)
    with Recording.open(media) as expected, open_growing(media, max_memory_s=max_memory_s) as recording:
        for start, stop in [
            (70_000, 170_000),
            (0, 10),
            (-5, 3),
            (9, 3),
            (90 * RATE, 91 * RATE),
            (99 * RATE, 200 * RATE),
        ]:
            np.testing.assert_array_equal(recording.samples(start, stop), expected.samples(start, stop))
        pieces = list(recording.pieces(1_000_001))
        np.testing.assert_array_equal(np.concatenate(pieces), expected.samples(0, expected.n_samples))
        assert recording.samples(200 * RATE, 201 * RATE).size == 0
        assert recording.summary == expected.summary
        assert (recording.duration, recording.is_silent) == (expected.duration, False)
        assert recording.available(RATE) == RATE
        assert recording.available(10**9) == expected.n_samples
        assert (recording.is_complete, recording.estimated_duration) == (True, expected.duration)


def test_passes_over_the_recording_wait_for_its_end(tones: Int16Samples, gated: GatedFile) -> None:
    expected = Recording.open(tones)
    with open_growing(gated) as recording:
        peak = Reader(lambda: mel_peak(recording, 80))
        level = Reader(lambda: measure_loudness(recording, "ebu"))
        assert peak.is_waiting()
        assert level.is_waiting()
        gated.open_gate()
        assert peak.finish() == mel_peak(expected, 80)
        assert level.finish() == measure_loudness(expected, "ebu")


def test_reads_what_is_there_and_waits_for_the_rest(tones: Int16Samples, gated: GatedFile) -> None:
    with open_growing(gated, max_memory_s=10) as recording:
        np.testing.assert_array_equal(recording.samples(0, 30 * RATE) * 32768, tones[: 30 * RATE])
        assert not recording.is_silent
        assert not recording.is_complete
        assert recording.estimated_duration == pytest.approx(100)  # of the header
        late = Reader(lambda: recording.samples(60 * RATE, 61 * RATE) * 32768)
        end = Reader(lambda: recording.n_samples)
        assert late.is_waiting()
        assert end.is_waiting()
        gated.open_gate()
        np.testing.assert_array_equal(late.finish(), tones[60 * RATE : 61 * RATE])
        assert end.finish() == tones.size


def test_silence_is_known_with_the_first_sound(tones: Int16Samples) -> None:
    silent, late = np.zeros(50 * RATE, np.int16), tones.copy()
    late[: 20 * RATE] = 0
    assert open_growing(wav(silent)).is_silent
    file = GatedFile(wav(late), 40 * RATE * 2)
    with open_growing(file) as recording:
        assert not recording.is_silent
        assert not recording.is_complete
        file.open_gate()


def test_errors_reach_who_needs_the_missing_samples(tones: Int16Samples, gated: GatedFile) -> None:
    with open_growing(gated) as recording:
        late = Reader(lambda: recording.samples(50 * RATE, 60 * RATE))
        assert late.is_waiting()
        gated.fail(OSError(5, "Input/output error"))
        error = late.finish()
        assert isinstance(error, AudioError)
        assert "gated.wav could not be read: Input/output error" in str(error)
        np.testing.assert_array_equal(recording.samples(0, RATE) * 32768, tones[:RATE])
        for read in (lambda: recording.duration, lambda: recording.warnings, lambda: recording.available(10**9)):
            with pytest.raises(AudioError, match="could not be read"):
                read()
        assert not recording.is_complete


def test_errors_of_the_source_and_of_the_decoder(tones: Int16Samples) -> None:
    with pytest.raises(AudioNotFound):
        open_growing("missing.wav")
    with pytest.raises(AudioEmpty):
        open_growing(b"")
    with open_growing(b"no audio" * 100) as recording, pytest.raises(NotAudio):
        recording.samples(0, 1)
    with open_growing(wav(tones), max_duration_s=2) as recording, pytest.raises(AudioTooLarge, match="longer than 2 s"):
        recording.samples(0, 3 * RATE)


def test_close_wakes_readers_and_ends_the_decoder(gated: GatedFile) -> None:
    before = len(os.listdir("/proc/self/fd"))
    recording = open_growing(gated, max_memory_s=0)
    assert recording.samples(0, RATE).size == RATE
    late, end = Reader(lambda: recording.samples(50 * RATE, 60 * RATE)), Reader(lambda: recording.duration)
    assert late.is_waiting()
    assert end.is_waiting()
    recording.close()
    assert isinstance(late.finish(), Cancelled)
    assert isinstance(end.finish(), Cancelled)
    with pytest.raises(Cancelled):
        recording.samples(0, RATE)
    gated.open_gate()
    assert eventually(lambda: not decode_threads())
    assert len(os.listdir("/proc/self/fd")) == before
    assert not gated.closed  # it is the caller's


def test_a_collected_recording_ends_its_decoder(gated: GatedFile) -> None:
    recording = open_growing(gated, max_memory_s=0)
    assert recording.samples(0, RATE).size == RATE
    del recording
    gated.open_gate()
    assert eventually(lambda: not gc.collect() and not decode_threads())


def test_arrays_are_complete(tones: Int16Samples) -> None:
    recording = open_growing(tones)
    assert (recording.is_complete, recording.estimated_duration) == (True, 100.0)
