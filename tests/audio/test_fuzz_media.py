"""Mutated real media: always a recording or a typed error; never a crash, a hang or a leak.

Seeds are fixed: a failing case is named by its number and can be run alone.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from choral.audio.recording import Recording
from choral.errors import AudioError
from media_files import caf, encode, png, read_clip, wav, with_cover

pytestmark = pytest.mark.speech

CASE_LIMIT_S = 20.0
MAX_GROWTH_MB = 60
WARM_UP_CASES = 100  # caches, codecs and allocator pools fill up first


@pytest.fixture(scope="module")
def media(speech_clips: list[Path]) -> list[bytes]:
    clip = read_clip(speech_clips[0], 1.5)
    ogg = encode(clip, "ogg", "libopus", rate=48_000)
    return [
        wav(clip),
        wav(clip.repeat(6), n_channels=6),
        encode(clip, "wav", "adpcm_ms"),
        encode(clip, "wav", "pcm_f32le", rate=8_000, layout="stereo"),
        encode(clip, "mp3", "libmp3lame", rate=44_100, layout="stereo"),
        with_cover(encode(clip, "mp3", "libmp3lame"), png()),
        encode(clip, "adts", "aac", rate=44_100),
        encode(clip, "mp4", "aac", rate=48_000),
        encode(clip, "mp4", "aac", rate=48_000, video="mpeg4", options={"movflags": "faststart"}),
        encode(clip, "mp4", "alac", options={"movflags": "frag_keyframe+empty_moov"}),
        ogg,
        ogg + encode(clip, "ogg", "flac"),
        encode(clip, "webm", "libopus", rate=48_000),
        encode(clip, "matroska", "ac3", rate=48_000, layout="5.1", video="mpeg4"),
        encode(clip, "flac", "flac"),
        encode(clip, "mpegts", "mp2", rate=32_000, video="mpeg4"),
        encode(clip, "asf", "wmav2", rate=44_100),
        encode(clip, "avi", "libmp3lame", rate=22_050, video="mpeg4"),
        encode(clip, "flv", "aac", rate=44_100),
        encode(clip, "aiff", "pcm_s16be"),
        encode(clip, "caf", "pcm_s24le"),
        caf(clip, [2, 1, 3]),
        encode(clip, "mov", "pcm_s16le", layout="5.1"),
        encode(clip, "au", "pcm_mulaw", rate=8_000),
    ]


def flip_bits(data: bytearray, rng: random.Random, media: list[bytes]) -> None:
    for _ in range(rng.choice([1, 10, 200])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def edit_header(data: bytearray, rng: random.Random, media: list[bytes]) -> None:
    """Extreme values in the header, where sizes, rates and counts are."""
    for _ in range(rng.randint(1, 6)):
        at, width = rng.randrange(min(len(data) - 8, 400)), rng.choice([1, 2, 4, 8])
        data[at : at + width] = rng.choice([b"\0" * width, b"\xff" * width, b"\x7f" + b"\xff" * (width - 1)])


def truncate(data: bytearray, rng: random.Random, media: list[bytes]) -> None:
    del data[rng.randrange(len(data)) :]


def cut_out(data: bytearray, rng: random.Random, media: list[bytes]) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.randint(1, 3_000)]


def overwrite(data: bytearray, rng: random.Random, media: list[bytes]) -> None:
    at = rng.randrange(len(data))
    noise = rng.randbytes(rng.randint(1, 4_000))
    data[at : at + len(noise)] = noise


def splice(data: bytearray, rng: random.Random, media: list[bytes]) -> None:
    """The head of one file, the tail of another."""
    other = rng.choice(media)
    del data[rng.randrange(len(data)) :]
    data += other[rng.randrange(len(other)) :]


def repeat(data: bytearray, rng: random.Random, media: list[bytes]) -> None:
    start = rng.randrange(len(data))
    data[start:start] = data[start : start + rng.randint(1, 2_000)] * rng.choice([1, 5, 50])


MUTATIONS: list[Callable[[bytearray, random.Random, list[bytes]], None]] = [
    flip_bits,
    edit_header,
    truncate,
    cut_out,
    overwrite,
    splice,
    repeat,
]


def mutated(media: list[bytes], case: int) -> bytes:
    rng = random.Random(case)
    data = bytearray(media[case % len(media)])
    for mutation in rng.choices(MUTATIONS, k=rng.choice([1, 1, 2, 3])):
        if len(data) > 16:
            mutation(data, rng, media)
    return bytes(data)


def run_case(media: list[bytes], case: int) -> str:
    """`recording`, or the name of the error class."""
    start_s = time.monotonic()
    try:
        with Recording.open(mutated(media, case), max_memory_s=10, max_duration_s=7_200) as recording:
            assert recording.n_samples > 0
            assert recording.samples(0, 1).size == 1
            outcome = "recording"
    except AudioError as error:
        outcome = type(error).__name__
    assert time.monotonic() - start_s < CASE_LIMIT_S, case
    return outcome


def resident_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run_cases(media: list[bytes], cases: range, capfd: pytest.CaptureFixture[str]) -> None:
    outcomes = [run_case(media, case) for case in cases[:WARM_UP_CASES]]
    n_open, size_mb = len(os.listdir("/proc/self/fd")), resident_mb()
    outcomes += [run_case(media, case) for case in cases[WARM_UP_CASES:]]
    assert resident_mb() - size_mb < MAX_GROWTH_MB
    assert len(os.listdir("/proc/self/fd")) == n_open
    assert capfd.readouterr() == ("", "")
    assert outcomes.count("recording") > len(cases) // 3, "the mutations must leave something to decode"
    assert outcomes.count("NotAudio") > len(cases) // 50, "and break some"


@pytest.mark.timeout(300)
def test_hundreds_of_mutations(media: list[bytes], capfd: pytest.CaptureFixture[str]) -> None:
    run_cases(media, range(500), capfd)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_thousands_of_mutations(media: list[bytes], capfd: pytest.CaptureFixture[str]) -> None:
    run_cases(media, range(500, 6_500), capfd)
