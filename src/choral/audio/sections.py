"""Sections of one file, decoded independently of each other: together they equal the file decoded from its beginning.

ffmpeg does all of it inside one filter graph, from the file to 16 kHz samples, so a thread holds the GIL only between
pieces of some seconds. A section starts where the resampler's phase is zero, and before that point it decodes what the
codec and the resampler need to have the state that they have in sequential decoding.

Damage shows in the number of samples: ffmpeg drops what it cannot decode. A section that does not have the expected
number raises `SectionMismatch`, and its file is decoded sequentially, which skips and reports damage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from av.audio.frame import AudioFrame
from av.filter import Graph
from av.filter.context import FilterContext

from choral.audio.constants import SAMPLE_RATE
from choral.audio.media import MEDIA_ERRORS
from choral.audio.resample import Piece, as_piece

SECTION_S = 30
MAX_PULL_SAMPLES = 8 * SAMPLE_RATE  # at a time: in between, a section can be cancelled
RUN_IN_TAPS = (
    64  # input samples at 16 kHz or below that the resampler's filter certainly spans, and more at higher rates
)
MAX_COUNT_ERROR = 2  # samples at the end of a file, by rounding; a frame that was dropped is many times that


class SectionMismatch(Exception):
    """The section does not have the samples that it should have."""


@dataclass(frozen=True)
class DecodeSection:
    """A range of 16 kHz samples, and how ffmpeg gets there."""

    start: int
    stop: int
    is_last: bool
    n_run_in: int  # 16 kHz samples before `start` that are decoded and dropped
    source: dict[str, str] = field(repr=False)  # options of ffmpeg's `amovie`
    trim: dict[str, str] = field(repr=False)  # and of `atrim`: where decoded samples begin to count
    has_timestamps: bool = False  # those of the decoded samples say where they are in the file


@dataclass(frozen=True)
class SectionGrid:
    """Where the sections of a file with this sample rate may start."""

    rate: int

    @property
    def unit_inputs(self) -> int:
        """From one input sample at which the resampler's phase is zero to the next."""
        return self.rate // math.gcd(self.rate, SAMPLE_RATE)

    @property
    def unit_outputs(self) -> int:
        return SAMPLE_RATE // math.gcd(self.rate, SAMPLE_RATE)

    @property
    def section_units(self) -> int:
        return SECTION_S * SAMPLE_RATE // self.unit_outputs

    @property
    def run_in_units(self) -> int:
        n_inputs = RUN_IN_TAPS * max(1, -(-self.rate // SAMPLE_RATE))
        return -(-n_inputs // self.unit_inputs)

    def first_unit(self, start: int) -> int:
        """The first unit at or after 16 kHz sample `start`."""
        return -(-start // self.unit_outputs)

    def section(
        self,
        first: int,
        n_inputs: int | None,
        *,
        source: dict[str, str],
        trim: dict[str, str],
        has_timestamps: bool = False,
    ) -> DecodeSection:
        """From unit `first`; to the end of a file of `n_inputs` samples, or of the usual length."""
        stop = (first + self.section_units) * self.unit_outputs
        return DecodeSection(
            start=first * self.unit_outputs,
            stop=stop if n_inputs is None else round(n_inputs * SAMPLE_RATE / self.rate),
            is_last=n_inputs is not None,
            n_run_in=min(first, self.run_in_units) * self.unit_outputs,
            source=source,
            trim=trim,
            has_timestamps=has_timestamps,
        )


def decode_section(section: DecodeSection, is_cancelled: Callable[[], bool]) -> list[Piece]:
    """Its samples, in pieces of some seconds; none of use if it is cancelled."""
    try:
        return _decode(section, is_cancelled)
    except MEDIA_ERRORS as error:
        raise SectionMismatch from error


def _decode(section: DecodeSection, is_cancelled: Callable[[], bool]) -> list[Piece]:
    graph, sink = _connect(section)
    n_wanted = section.n_run_in + section.stop - section.start
    n_pulls = -(-n_wanted // MAX_PULL_SAMPLES)
    graph.set_audio_frame_size(-(-n_wanted // n_pulls))
    pieces: list[Piece] = []
    n_decoded = 0
    while (section.is_last or n_decoded < n_wanted) and not is_cancelled():
        try:
            frame = sink.pull()
        except EOFError:
            break
        assert isinstance(frame, AudioFrame)
        if not pieces:
            _require_position(section, frame)
        pieces.append(as_piece(frame))
        n_decoded += len(pieces[-1])
    if is_cancelled():
        return []
    return _trimmed(section, pieces, n_decoded - n_wanted)


def _trimmed(section: DecodeSection, pieces: list[Piece], n_more: int) -> list[Piece]:
    """Without the run-in and what follows the section."""
    if not pieces or len(pieces[0]) < section.n_run_in:
        raise SectionMismatch
    if section.is_last:
        if abs(n_more) > MAX_COUNT_ERROR:
            raise SectionMismatch
    elif n_more < 0:
        raise SectionMismatch
    elif n_more:
        pieces[-1] = pieces[-1][:-n_more]
    pieces[0] = pieces[0][section.n_run_in :]
    return pieces


def _require_position(section: DecodeSection, frame: AudioFrame) -> None:
    """ffmpeg seeks to a frame before the section, if it can."""
    if section.has_timestamps and (frame.pts is None or abs(frame.pts - section.start + section.n_run_in) > 1):
        raise SectionMismatch


def _connect(section: DecodeSection) -> tuple[Graph, FilterContext]:
    graph = Graph()
    if hasattr(graph, "threads"):
        graph.threads = 1
    # In this order, in which ffmpeg negotiates formats: otherwise it resamples before `atrim`.
    source, trim = graph.add("amovie", **section.source), graph.add("atrim", **section.trim)
    output = graph.add("aformat", sample_rates=str(SAMPLE_RATE), sample_fmts="s16", channel_layouts="mono")
    sink = graph.add("abuffersink")
    graph.link_nodes(source, trim, output, sink)
    graph.configure()
    return graph, sink
