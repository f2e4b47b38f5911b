"""The frames of an mp3 file: where each starts, found from their headers without decoding them.

Only files whose frames follow each other without a gap, with the same rate and channels, are described: in all others,
where ffmpeg finds the next frame is for ffmpeg to say. An encoder's header frame ("Xing", "Info", "VBRI") is no audio.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt

HEADER_BYTES = 4
CHECKSUM_BYTES = 2
MAX_RESERVOIR_BYTES = 511  # before a frame, that its audio may start in
FILTER_FRAMES = 4  # before a frame, that the decoder's filters still contain; one would do
READ_BYTES = 2**20
_KBITS = {  # of layer 3, by version and the header's index; 0 and 15 are not allowed here
    True: (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}  # by version
_LAYER_3 = 1
_MONO = 3
_DECODER_DELAY = 529  # samples that ffmpeg adds to the encoder's delay, and takes from its padding
_TAGGED_ENCODERS = (b"LAME", b"Lavf", b"Lavc")  # whose delay ffmpeg believes
_TAIL_TAG_BYTES = 128  # of ID3v1
_INFO_FIELDS = ((1, 4), (2, 4), (4, 100), (8, 4))  # flags, and the bytes of: frames, size, table, quality


class UnusualMp3(Exception):
    """The file is not one that can be decoded in sections."""


@dataclass(frozen=True)
class Mp3Header:
    version: int  # 3: MPEG 1, 2: MPEG 2, 0: MPEG 2.5
    rate: int
    is_mono: bool
    n_bytes: int

    @property
    def n_samples(self) -> int:
        return 1152 if self.version == 3 else 576

    @property
    def side_bytes(self) -> int:
        return (17 if self.is_mono else 32) if self.version == 3 else (9 if self.is_mono else 17)


@dataclass(frozen=True)
class Mp3Layout:
    """An mp3 file before its frames are read."""

    start: int  # of the first frame of audio, in bytes
    stop: int  # after the last
    has_tail_tag: bool  # after that
    header: Mp3Header  # of the first
    n_skipped: int  # samples that are not heard at the beginning
    n_padding: int  # and at the end
    n_frames: int | None  # that the encoder has counted

    def n_heard(self, n_frames: int) -> int:
        """Samples of a file with this many frames. Raises `UnusualMp3` if there are more than the encoder counted."""
        n_missing = 0 if self.n_frames is None else self.n_frames - n_frames
        if n_missing < 0:
            raise UnusualMp3
        n_padding = max(0, self.n_padding - n_missing * self.header.n_samples)
        return n_frames * self.header.n_samples - self.n_skipped - n_padding


def parse_header(data: bytes) -> Mp3Header:
    if len(data) < HEADER_BYTES or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        raise UnusualMp3
    version, layer = data[1] >> 3 & 3, data[1] >> 1 & 3
    bitrate_index, rate_index = data[2] >> 4, data[2] >> 2 & 3
    if version not in _RATES or layer != _LAYER_3 or bitrate_index in (0, 15) or rate_index == 3:
        raise UnusualMp3
    rate, kbits = _RATES[version][rate_index], _KBITS[version == 3][bitrate_index - 1]
    n_bytes = (144 if version == 3 else 72) * 1000 * kbits // rate + (data[2] >> 1 & 1)
    return Mp3Header(version, rate, data[3] >> 6 == _MONO, n_bytes)


def read_layout(file: IO[bytes]) -> Mp3Layout:
    """Raises `UnusualMp3`."""
    start = _after_tags(file)
    header = parse_header(_read(file, start, HEADER_BYTES))
    frame = _read(file, start, header.n_bytes)
    stop = file.seek(0, io.SEEK_END)
    has_tail_tag = _read(file, max(stop - _TAIL_TAG_BYTES, 0), 3) == b"TAG"
    stop -= _TAIL_TAG_BYTES if has_tail_tag else 0
    tag_start = HEADER_BYTES + header.side_bytes
    if frame[36:40] == b"VBRI":
        raise UnusualMp3
    if frame[tag_start : tag_start + 4] not in (b"Xing", b"Info"):
        return Mp3Layout(start, stop, has_tail_tag, header, n_skipped=0, n_padding=0, n_frames=None)
    n_frames, n_skipped, n_padding = _parse_info(frame[tag_start:], header)
    first = parse_header(_read(file, start + header.n_bytes, HEADER_BYTES))
    return Mp3Layout(start + header.n_bytes, stop, has_tail_tag, first, n_skipped, n_padding, n_frames)


def frame_starts(file: IO[bytes], layout: Mp3Layout) -> Iterator[npt.NDArray[np.int64]]:
    """The positions of all frames, about a megabyte at a time. Raises `UnusualMp3` where they end before the file."""
    lengths, position = _frame_lengths(layout.header), layout.start
    while position < layout.stop:
        data = _read(file, position, min(READ_BYTES, layout.stop - position))
        offset, last, offsets = 0, len(data) - HEADER_BYTES, []
        try:
            while offset <= last:
                offsets.append(offset)
                offset += lengths[data[offset : offset + 3]]
        except KeyError:
            raise UnusualMp3 from None
        starts = np.array(offsets, np.int64)
        modes = np.frombuffer(data, np.uint8)[starts + 3] >> 6
        if not offsets or ((modes == _MONO) != layout.header.is_mono).any():
            raise UnusualMp3
        yield position + starts
        position += offset
    if position != layout.stop and layout.has_tail_tag:  # without one, ffmpeg decodes what there is of the last frame
        raise UnusualMp3


def n_warm_up_frames(starts: Sequence[int], frame: int, header: Mp3Header) -> int:
    """How many frames before `frame` its samples depend on: those whose data may have bytes of its audio, and a few."""
    n_frames = n_bytes = 0
    while n_bytes < MAX_RESERVOIR_BYTES and n_frames < frame:
        n_frames += 1
        length = starts[frame - n_frames + 1] - starts[frame - n_frames]
        n_bytes += max(0, length - HEADER_BYTES - CHECKSUM_BYTES - header.side_bytes)
    return min(frame, n_frames + FILTER_FRAMES)


def _frame_lengths(first: Mp3Header) -> dict[bytes, int]:
    """By the first three bytes of a header, for all headers with the same version and rate."""
    rate_index = _RATES[first.version].index(first.rate)
    lengths = {}
    for unprotected, index, padding, private in itertools.product((0, 1), range(1, 15), (0, 1), (0, 1)):
        second = 0xE0 | first.version << 3 | _LAYER_3 << 1 | unprotected
        third = index << 4 | rate_index << 2 | padding << 1 | private
        lengths[bytes((0xFF, second, third))] = parse_header(bytes((0xFF, second, third, 0))).n_bytes
    return lengths


def _parse_info(tag: bytes, header: Mp3Header) -> tuple[int | None, int, int]:
    """From the encoder's header frame: the number of frames, and samples that ffmpeg skips at both ends."""
    flags = int.from_bytes(tag[4:8], "big")
    n_frames = int.from_bytes(tag[8:12], "big") if flags & 1 else None
    encoder = tag[8 + sum(size for bit, size in _INFO_FIELDS if flags & bit) :]
    if encoder[:4] not in _TAGGED_ENCODERS:
        return n_frames, 0, 0
    delays = int.from_bytes(encoder[21:24], "big")
    n_padding = max(0, (delays & 0xFFF) - _DECODER_DELAY) if n_frames else 0
    return n_frames, (delays >> 12) + _DECODER_DELAY, n_padding


def _after_tags(file: IO[bytes]) -> int:
    """Where the ID3v2 tags at the beginning end."""
    position = 0
    while (head := _read(file, position, 10)).startswith(b"ID3"):
        size = 0
        for byte in head[6:10]:
            size = size << 7 | byte & 0x7F
        position += 10 + size + (10 if head[5] & 0x10 else 0)
    return position


def _read(file: IO[bytes], start: int, n_bytes: int) -> bytes:
    file.seek(start)
    return file.read(n_bytes)
