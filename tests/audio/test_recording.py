"""Recordings: random access from memory and disk, arrays, cancellation, bounded memory, cleanup."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from choral.audio.recording import Cancelled, Recording
from choral.errors import AudioTooLarge, StorageError
from media_files import Int16Samples, encode, read_clip, wav

SCALE = np.float32(32768)


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def tones() -> Int16Samples:
    return (np.sin(np.arange(50_000) * 0.05) * 9_000).astype(np.int16)


@pytest.mark.parametrize("max_memory_s", [1_200, 1.0, 0.0], ids=["memory", "spilled midway", "disk"])
def test_reads_any_range(tones: Int16Samples, max_memory_s: float) -> None:
    with Recording.open(encode(tones, "flac", "flac"), max_memory_s=max_memory_s) as recording:
        expected = tones.astype(np.float32) / SCALE
        assert recording.n_samples == 50_000
        assert recording.duration == 3.125
        assert not recording.is_silent
        for start, stop in [(0, 50_000), (1, 2), (-100, 700), (49_990, 60_000), (70_000, 80_000), (9, 3)]:
            got = recording.samples(start, stop)
            assert got.dtype == np.float32
            np.testing.assert_array_equal(got, expected[max(start, 0) : max(stop, 0)])
        np.testing.assert_array_equal(np.concatenate(list(recording.pieces(7_001))), expected)


def test_concurrent_reads_from_disk(tones: Int16Samples) -> None:
    recording = Recording.open(wav(np.tile(tones, 20)), max_memory_s=1)
    expected = np.tile(tones, 20).astype(np.float32) / SCALE
    wrong: list[int] = []

    def read(seed: int) -> None:
        for start in np.random.default_rng(seed).integers(0, 900_000, 200):
            if not np.array_equal(recording.samples(start, start + 5_000), expected[start : start + 5_000]):
                wrong.append(int(start))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recording.close()
    assert wrong == []


def test_float32_array_is_not_copied() -> None:
    samples = np.linspace(-1.5, 1.5, 1_000, dtype=np.float32)
    recording = Recording.open(samples)
    assert np.shares_memory(recording.samples(0, 1_000), samples)
    np.testing.assert_array_equal(recording.samples(10, 20), samples[10:20])
    assert recording.warnings == ()


def test_arrays_of_other_types(tones: Int16Samples) -> None:
    expected = tones.astype(np.float32) / SCALE
    for array in (tones, tones / 32768.0, expected[::1], np.repeat(expected, 2)[::2]):
        np.testing.assert_array_equal(Recording.open(array).samples(0, 50_000), expected)


def test_unscaled_array_warns(tones: Int16Samples) -> None:
    assert "full scale is 1" in Recording.open(tones.astype(np.float32)).warnings[0]
    assert Recording.open(tones).warnings == ()


@pytest.mark.parametrize(("level", "is_silent"), [(0, True), (3, True), (4, False), (-32768, False)])
def test_silence(level: int, is_silent: bool) -> None:
    samples = np.zeros(1_000, np.int16)
    samples[500] = level
    for audio in (samples, samples.astype(np.float32) / SCALE, wav(samples)):
        assert Recording.open(audio).is_silent is is_silent


@pytest.mark.parametrize("n_samples", [1, 160, 401])
def test_very_short(n_samples: int) -> None:
    assert Recording.open(wav(np.full(n_samples, 500, np.int16))).n_samples == n_samples


def test_progress_reaches_the_end(tones: Int16Samples) -> None:
    seen: list[tuple[float, float | None]] = []
    Recording.open(wav(np.tile(tones, 4)), on_progress=lambda done_s, total_s: seen.append((done_s, total_s)))
    assert [done_s for done_s, _ in seen] == sorted(done_s for done_s, _ in seen)
    assert seen[-1] == (12.5, 12.5)
    assert len(seen) > 3


def test_too_long(tones: Int16Samples) -> None:
    with pytest.raises(AudioTooLarge, match="longer than 2 s: cut it"):
        Recording.open(wav(tones), max_duration_s=2)


def test_no_descriptor_leaks(tones: Int16Samples, tmp_path: Path) -> None:
    path = tmp_path / "tones.wav"
    path.write_bytes(wav(tones))
    before = open_files()
    for _ in range(5):
        Recording.open(path, max_memory_s=0)
        Recording.open(path, max_memory_s=0).close()
        with pytest.raises(AudioTooLarge):
            Recording.open(path, max_memory_s=0, max_duration_s=1)
        with open(path, "rb") as file:
            Recording.open(file, max_memory_s=0)
            assert not file.closed
    assert open_files() == before


def test_close_frees_the_samples(tones: Int16Samples) -> None:
    samples = tones.copy()
    held = weakref.ref(samples)
    recording = Recording.open(samples)
    recording.close()
    del samples
    assert held() is None
    assert recording.n_samples == 50_000


def test_failing_progress_callback_closes_the_file(tones: Int16Samples) -> None:
    def fail(done_s: float, total_s: float | None) -> None:
        raise KeyboardInterrupt

    before = open_files()
    with pytest.raises(KeyboardInterrupt):
        Recording.open(wav(tones), max_memory_s=0, on_progress=fail)
    assert open_files() == before


def test_cancel_event_ends_decoding_and_reading(tones: Int16Samples) -> None:
    event = threading.Event()
    with Recording.open(wav(tones), max_memory_s=1.0, cancel_event=event) as recording:
        assert recording.samples(0, 100).size == 100
        louder = recording.amplified(2.0)
        event.set()
        for cancelled in (recording, louder):
            with pytest.raises(Cancelled):
                cancelled.samples(0, 100)
    with pytest.raises(Cancelled):
        Recording.open(wav(tones), cancel_event=event)
    with Recording.open(tones, cancel_event=event) as array, pytest.raises(Cancelled):
        next(array.pieces(10))


def test_full_disk(tones: Int16Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "r+b"))  # noqa: SIM115
    with pytest.raises(StorageError, match=r"no space left in .*set TMPDIR"):
        Recording.open(wav(np.tile(tones, 4)), max_memory_s=0)


def test_missing_temporary_folder(tones: Int16Samples, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(StorageError, match="set TMPDIR"):
        Recording.open(wav(tones), max_memory_s=0)


LONG = """
import resource, sys
import numpy as np
from choral.audio.growing_recording import open_growing
from choral.audio.mel import mel_peak
from choral.audio.recording import Recording
from choral.longform.cuts import NO_END, Clip
from choral.longform.speech_windows import windows_of
from choral.options import TranscribeOptions
from long_wav import LongWav

hours, max_memory_s, clip = float(sys.argv[1]), float(sys.argv[2]), open("clip.wav", "rb").read()

def check_end(recording):
    assert recording.duration == int(hours * 3600), recording.duration
    assert not recording.warnings, recording.warnings
    last = recording.samples(recording.n_samples - 10, recording.n_samples)
    at = (recording.n_samples * 2 - 20) % (len(clip) - 44)
    assert (last * 32768 == np.frombuffer((clip[44:] * 2)[at:at + 20], "<i2")).all()

def decode_all():
    with Recording.open(LongWav(clip, hours), max_memory_s=max_memory_s) as recording:
        check_end(recording)
        mel_peak(recording, 80)

def decode_and_search():
    with open_growing(LongWav(clip, hours), max_memory_s=max_memory_s) as recording:
        windows = windows_of(recording, [Clip(0, NO_END)], TranscribeOptions(), only_speech=True)
        assert sum(window.stop - window.start for window in windows) > hours * 300_000
        check_end(recording)

Recording.open(clip).close()
list(windows_of(Recording.open(clip), [Clip(0, NO_END)], TranscribeOptions(), only_speech=True))
def peak_mb(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak_mb()
globals()[sys.argv[3]]()
print(peak_mb() - before)
"""


def peak_growth_mb(work: str, hours: float, max_memory_s: float, clip: Int16Samples, folder: Path) -> float:
    (folder / "long.py").write_text(LONG)
    (folder / "clip.wav").write_bytes(wav(clip))
    command = [sys.executable, "long.py", str(hours), str(max_memory_s), work]
    path = os.pathsep.join(filter(None, sys.path))
    done: Any = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.speech
def test_memory_of_one_hour(speech_clips: list[Path], tmp_path: Path) -> None:
    growth_mb = peak_growth_mb("decode_all", 1, 60, read_clip(speech_clips[0]), tmp_path)
    assert growth_mb < 40  # the samples alone are 115 MB


@pytest.mark.slow
@pytest.mark.speech
@pytest.mark.parametrize("work", ["decode_all", "decode_and_search"])
def test_memory_of_ten_hours(work: str, speech_clips: list[Path], tmp_path: Path) -> None:
    growth_mb = peak_growth_mb(work, 10, 1_200, read_clip(speech_clips[0]), tmp_path)
    assert growth_mb < 200  # the samples alone are 1.15 GB
