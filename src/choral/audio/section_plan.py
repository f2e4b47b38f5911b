"""Which files are decoded in sections, and where their sections start.

mp3, flac and wav with integers qualify: their frames do not depend on those before them, or on a few that are known.
The file must be one that ffmpeg can open itself: a regular file, through its descriptor, read as the format it has.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import tempfile
from array import array
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from typing import IO

from choral.audio.media import PCM_WAV_OPTIONS, Media
from choral.audio.mp3_frames import Mp3Layout, UnusualMp3, frame_starts, n_warm_up_frames, read_layout
from choral.audio.recording import MAX_ORDINARY_RATE
from choral.audio.sections import DecodeSection, SectionGrid, SectionMismatch
from choral.audio.source import AudioSource

SEEK_MARGIN_S = 1.0  # before a section, where ffmpeg seeks to
MAX_SECTIONED_CHANNELS = 2
MARKER_READ_BYTES = 2**20
_FLAC_MARKERS = (b"fLaC\0\0\0\x22", b"fLaC\x80\0\0\x22")  # with the header of the first block
_INTEGER_CODECS = ("pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le")


def plan_sections(source: AudioSource, media: Media, start: int) -> Iterator[DecodeSection]:
    """The sections of a file from the first possible start after 16 kHz sample `start`.

    Raises `SectionMismatch` if it has to be decoded sequentially, and so does the iterator, where that turns out.
    """
    context, kind = media.stream.codec_context, media.container.format.name
    n_channels, codec = context.layout.nb_channels, context.name
    if n_channels <= MAX_SECTIONED_CHANNELS and n_channels * context.sample_rate <= MAX_ORDINARY_RATE:
        if kind == "mp3" and codec.startswith("mp3"):
            return mp3_sections(readable_path(source.file), start)
        if (kind, codec) == ("flac", "flac") or (kind == "wav" and codec in _INTEGER_CODECS):
            return seekable_sections(media, readable_path(source.file), start)
    raise SectionMismatch


def readable_path(file: IO[bytes]) -> str:
    """A path of the open file that ffmpeg can open; the file may have no name any more."""
    is_plain = type(file) is io.BufferedReader and type(file.raw) is io.FileIO
    if sys.platform != "linux" or not (is_plain or isinstance(file, tempfile.SpooledTemporaryFile)):
        raise SectionMismatch
    number = file.fileno()  # moves a download from memory to a file
    path = f"/proc/self/fd/{number}"
    if not stat.S_ISREG(os.fstat(number).st_mode) or not os.access(path, os.R_OK):
        raise SectionMismatch
    return path


def mp3_sections(path: str, start: int) -> Iterator[DecodeSection]:
    """Found while the headers of the frames are read, so that the first need not wait for the last."""
    try:
        file = open(path, "rb")  # noqa: SIM115  with a position of its own; the next line closes it
    except OSError as error:
        raise SectionMismatch from error
    with file:
        yield from _mp3_sections(file, path, start)


def _mp3_sections(file: IO[bytes], path: str, start: int) -> Iterator[DecodeSection]:
    try:
        layout = read_layout(file)
        grid, starts = SectionGrid(layout.header.rate), array("q")
        first = grid.first_unit(start)
        for part in frame_starts(file, layout):
            starts.frombytes(part.tobytes())
            n_units = (len(starts) * layout.header.n_samples - layout.n_skipped) // grid.unit_inputs
            while n_units - first >= 2 * grid.section_units:
                yield mp3_section(grid, layout, starts, path, first, None)
                first += grid.section_units
        yield mp3_section(grid, layout, starts, path, first, layout.n_heard(len(starts)))
    except UnusualMp3 as error:
        raise SectionMismatch from error


def mp3_section(
    grid: SectionGrid, layout: Mp3Layout, starts: array[int], path: str, first: int, n_inputs: int | None
) -> DecodeSection:
    """`first`: its first unit; `n_inputs`: those of the file, for the last section."""
    n_before = max(0, first - grid.run_in_units) * grid.unit_inputs + layout.n_skipped
    frame = n_before // layout.header.n_samples
    frame -= n_warm_up_frames(starts, frame, layout.header)
    n_decoded = frame * layout.header.n_samples  # samples of the file before those of this section
    trim = {"start_sample": str(n_before - n_decoded)}
    if n_inputs is not None:
        trim["end_sample"] = str(n_inputs + layout.n_skipped - n_decoded)
    return grid.section(
        first,
        n_inputs,
        source={
            "filename": path,
            "format_name": "mp3",
            "format_opts": f"protocol_whitelist=file:skip_initial_bytes={starts[frame]}",
        },
        trim=trim,
    )


def format_options(kind: str) -> str:
    options = {"protocol_whitelist": "file", **(PCM_WAV_OPTIONS if kind == "wav" else {})}
    return ":".join(f"{name}={value}" for name, value in options.items())


def seekable_sections(media: Media, path: str, start: int) -> Iterator[DecodeSection]:
    """Of a format in which ffmpeg finds any sample, and knows how many there are."""
    stream, kind, rate = media.stream, media.container.format.name, media.stream.codec_context.sample_rate
    if stream.time_base != Fraction(1, rate) or stream.start_time or not stream.duration:
        raise SectionMismatch
    grid = SectionGrid(rate)
    first, n_units = grid.first_unit(start), stream.duration // grid.unit_inputs
    markers = find_markers(path, 1 + max(0, n_units - first) // grid.section_units) if kind == "flac" else None
    is_last = False
    while not is_last:
        is_last = n_units - first < 2 * grid.section_units
        if markers is not None and any(islice(markers, None if is_last else 1)):
            raise SectionMismatch
        n_before = max(0, first - grid.run_in_units) * grid.unit_inputs
        yield grid.section(
            first,
            stream.duration if is_last else None,
            source={
                "filename": path,
                "format_name": kind,
                "format_opts": format_options(kind),
                "seek_point": f"{max(0.0, n_before / rate - SEEK_MARGIN_S):.6f}",
            },
            trim={"start_pts": str(n_before)},
            has_timestamps=True,
        )
        first += grid.section_units


def find_markers(path: str, n_parts: int) -> Iterator[bool]:
    """For each part of a flac file, whether another one begins in it: ffmpeg would decode both, but counts one."""
    try:
        file = open(path, "rb")  # noqa: SIM115  the next line closes it
    except OSError as error:
        raise SectionMismatch from error
    with file:
        n_bytes = -(-os.fstat(file.fileno()).st_size // n_parts)
        for part in range(n_parts):
            yield any(_has_marker(file, part * n_bytes + at) for at in range(0, n_bytes, MARKER_READ_BYTES))


def _has_marker(file: IO[bytes], start: int) -> bool:
    file.seek(max(start, 1))  # that at 0 is the file's own
    data = file.read(MARKER_READ_BYTES + len(_FLAC_MARKERS[0]))
    return any(marker in data for marker in _FLAC_MARKERS)
