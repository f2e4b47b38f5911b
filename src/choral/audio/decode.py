"""Decodes any source that ffmpeg can read to 16 kHz int16 samples, mono or each channel, piece by piece.

Damaged packets are skipped and counted; a truncated file yields what it has. Both leave a warning, which is complete
when the iteration has ended. A file that yields no samples is a typed error. Importing this module loads PyAV.

Chained Ogg files (several streams one after another, as web radio writes them) are split into their links first,
because ffmpeg continues into the next link only while rate and channels stay the same.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from typing import IO, cast

import numpy as np
from av.audio.frame import AudioFrame
from av.audio.layout import AudioLayout
from av.audio.stream import AudioStream
from av.packet import Packet

from choral.audio.constants import SAMPLE_RATE
from choral.audio.media import MEDIA_ERRORS, Media, channels_of, open_media, require_safe_layouts
from choral.audio.resample import Pieces, Resampler
from choral.audio.source import AudioSource, unreadable
from choral.errors import AudioEmpty, BadSamples, NoAudioTrack, NotAudio
from choral.options import Channels

MAX_FAILURES_IN_A_ROW = 1_000  # damaged packets with no audio between them
MIN_MISSING_S = 0.5  # codec delays and rounded headers account for less than this

_OGG_HEADER_BYTES = 27  # of a page, before its segment table
_OGG_FIRST_PAGE_FLAG = 0x02  # set on the first page of each stream; these precede all other pages of a link
_MAX_OGG_PAGES = 2_000_000  # scanned at most: a year of music has fewer


class Decoder:
    """Iterate `pieces()` once; then `warnings` is complete."""

    def __init__(self, source: AudioSource, channels: Channels = "mix") -> None:
        self.name = source.name
        try:
            first, *self._later_links = ogg_links(source)
            self._media: Media = open_media(first)
        except (OSError, ValueError) as error:
            raise unreadable(source.name, error) from error
        self._resampler = Resampler(source.name, channels)
        self._failures = 0
        self._failures_in_a_row = 0
        self._n_samples = 0
        self._safe_layout: AudioLayout | None = None  # that of the last frames
        self._last: tuple[AudioFrame, int] | None = None  # with its timestamp in the file, which includes gaps

    @property
    def total_s(self) -> float | None:
        return None if self._later_links else self._media.total_s

    @property
    def media(self) -> Media:
        return self._media

    @property
    def n_values(self) -> int:
        """Decoded from the file: samples of all channels, before resampling."""
        return self._resampler.n_values

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings())

    def pieces(self) -> Pieces:
        try:
            for piece in self._resampled():
                self._n_samples += len(piece)
                yield piece
        except MEDIA_ERRORS as error:
            self._media.reader.raise_pending()
            raise NotAudio(f"{self.name} could not be decoded: convert it to wav or flac") from error
        finally:
            self._media.container.close()
        self._media.reader.raise_pending()
        self._require_samples()

    def add_samples(self, n_samples: int) -> None:
        """Count samples that were decoded elsewhere, up to the end of the file."""
        self._n_samples += n_samples

    def close(self) -> None:
        self._media.container.close()

    def _resampled(self) -> Pieces:
        for frames in self._frames():
            for frame in frames:
                if frame.samples:
                    if (pts := frame.pts) is not None:
                        self._last = frame, pts
                    if self._media.is_float:
                        self._require_finite(frame)
                    yield from self._resampler.push(frame)
        yield from self._resampler.flush()

    def _frames(self) -> Iterator[list[AudioFrame]]:
        """The frames of each packet, link by link."""
        yield from self._frames_of_link()
        for source in self._later_links:
            try:
                media = open_media(source)
            except (NotAudio, NoAudioTrack):
                self._count_failure()
                continue
            self._media.container.close()
            self._media = media
            yield from self._frames_of_link()

    def _frames_of_link(self) -> Iterator[list[AudioFrame]]:
        reader = self._media.reader
        for packet in self._packets():
            try:
                frames = packet.decode()
            except MEDIA_ERRORS:
                self._count_failure()
                continue
            for frame in frames:
                if frame.layout != self._safe_layout:  # comparing is fast, the check is not
                    require_safe_layouts(frames)
                    self._safe_layout = frame.layout
            if frames:
                self._failures_in_a_row = 0
                reader.found_audio = True
                yield frames

    def _packets(self) -> Iterator[Packet[AudioStream]]:
        """All packets of the stream. A container error ends one `demux`; the next one resumes behind the damage."""
        while self._failures_in_a_row < MAX_FAILURES_IN_A_ROW:
            try:
                for packet in self._media.container.demux(self._media.stream):
                    yield packet
                    if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
                        return
                return
            except IndexError:
                return  # PyAV's end of a file in which more streams appeared than its header listed
            except MEDIA_ERRORS:
                self._count_failure()

    def _count_failure(self) -> None:
        self._failures += 1
        self._failures_in_a_row += 1

    def _require_finite(self, frame: AudioFrame) -> None:
        samples = channels_of(frame)
        if not np.isfinite(samples.min()) or not np.isfinite(samples.max()):
            raise BadSamples(f"{self.name} has samples that are NaN or infinite: export it again")

    def _end_s(self) -> float:
        """Where the last frame ends by the file's timestamps; computed once, at the end, because it is slow."""
        if self._last is None:
            return 0.0
        frame, pts = self._last
        return float(pts * (frame.time_base or 0)) + frame.samples / max(frame.sample_rate, 1)

    def _require_samples(self) -> None:
        if self._n_samples:
            return
        if self._failures:
            raise NotAudio(f"{self.name} is damaged: nothing in it could be decoded; export or download it again")
        raise AudioEmpty(f"{self.name} has no audio in it: it decodes to no samples")

    def _warnings(self) -> Iterator[str]:
        decoded_s = self._n_samples / SAMPLE_RATE
        if self._failures:
            sections = "one damaged section was" if self._failures == 1 else f"{self._failures} damaged sections were"
            yield f"{self.name}: {sections} skipped"
        header_s = self._media.header_s
        if header_s is not None and max(decoded_s, self._end_s()) < header_s - MIN_MISSING_S:
            yield f"{self.name} ends early: transcribed the first {decoded_s:.1f} s of {header_s:.1f} s"


def ogg_links(source: AudioSource) -> list[AudioSource]:
    """Each link of a chained Ogg file as a source of its own; any other file unchanged."""
    starts = list(_link_starts(source.file))
    size = source.file.seek(0, io.SEEK_END)
    source.file.seek(0)
    if len(starts) < 2:
        return [source]
    stops = [*starts[1:], size]
    parts = [FileSlice(source.file, start, stop) for start, stop in zip([0, *starts[1:]], stops, strict=True)]
    return [dataclasses.replace(source, file=cast(IO[bytes], part), owns_file=False) for part in parts]


def _link_starts(file: IO[bytes]) -> Iterator[int]:
    """Offsets of pages that start a stream where the page before did not."""
    position, was_first = 0, False
    for _ in range(_MAX_OGG_PAGES):
        file.seek(position)
        header = file.read(_OGG_HEADER_BYTES)
        if len(header) < _OGG_HEADER_BYTES or not header.startswith(b"OggS"):
            return
        is_first = bool(header[5] & _OGG_FIRST_PAGE_FLAG)
        if is_first and not was_first:
            yield position
        was_first = is_first
        position += _OGG_HEADER_BYTES + header[26] + sum(file.read(header[26]))


class FileSlice(io.RawIOBase):
    """The bytes of `file` from `start` up to `stop`, as a file. It shares the position of `file`."""

    def __init__(self, file: IO[bytes], start: int, stop: int) -> None:
        self._file = file
        self._start = start
        self._size = stop - start

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self.tell(), 0)
        return self._file.read(left if size < 0 else min(size, left))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        target = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        if target < 0:
            raise ValueError(f"cannot seek to {target}")
        return self._file.seek(self._start + target) - self._start

    def tell(self) -> int:
        return self._file.tell() - self._start

    def seekable(self) -> bool:
        return True
