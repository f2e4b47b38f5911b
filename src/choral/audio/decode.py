"""From a source to 16 kHz mono int16 samples, in pieces, whatever ffmpeg can decode.

Damaged places are skipped and counted; a file that ends early gives what it has. Both leave a warning, known
when the iteration ends. What gives no sound at all is a typed error. Loading this module loads PyAV.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.packet import Packet

from choral.audio.constants import SAMPLE_RATE
from choral.audio.layouts import channels_of, require_settled
from choral.audio.media import MEDIA_ERRORS, Media, open_media
from choral.audio.ogg import links
from choral.audio.resample import Pieces, Resampler
from choral.audio.source import Source, unreadable
from choral.errors import AudioEmpty, BadSamples, NoAudioTrack, NotAudio

MAX_FAILURES_IN_A_ROW = 1_000  # damaged packets with no sound between them
EARLY_END_S = 0.5  # encoders' delays and rounded headers are shorter


class Decoder:
    """Iterate `pieces()` once; then `warnings` is complete."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        try:
            first, *self._later = links(source)
            self._media: Media = open_media(first)
        except (OSError, ValueError) as error:
            raise unreadable(source.name, error) from error
        self._resampler = Resampler()
        self._failures = 0
        self._failures_in_a_row = 0
        self._n_samples = 0
        self._last: tuple[AudioFrame, int] | None = None  # with its time by the file's own clock, which counts gaps

    @property
    def total_s(self) -> float | None:
        return None if self._later else self._media.total_s

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings())

    def pieces(self) -> Pieces:
        try:
            for piece in self._resampled():
                self._n_samples += piece.size
                yield piece
        except MEDIA_ERRORS as error:
            self._media.reader.raise_pending()
            raise NotAudio(f"{self.name} could not be decoded: convert it to wav or flac") from error
        finally:
            self._media.container.close()
        self._media.reader.raise_pending()
        self._require_sound()

    def close(self) -> None:
        self._media.container.close()

    def _resampled(self) -> Pieces:
        for frame in self._frames():
            if frame.samples:
                self._inspect(frame)
                yield from self._resampler.push(frame)
        yield from self._resampler.flush()

    def _frames(self) -> Iterator[AudioFrame]:
        yield from self._frames_of_link()
        for source in self._later:
            try:
                media = open_media(source)
            except (NotAudio, NoAudioTrack):
                self._note_failure()
                continue
            self._media.container.close()
            self._media = media
            yield from self._frames_of_link()

    def _frames_of_link(self) -> Iterator[AudioFrame]:
        for packet in self._packets():
            try:
                frames = packet.decode()
            except MEDIA_ERRORS:
                self._note_failure()
                continue
            require_settled(frames)
            if frames:
                self._failures_in_a_row = 0
                self._media.reader.note_sound()
            yield from frames

    def _packets(self) -> Iterator[Packet[AudioStream]]:
        """All packets of the stream; an error of the container ends one round, the next goes on behind it."""
        while self._failures_in_a_row < MAX_FAILURES_IN_A_ROW:
            try:
                for packet in self._media.container.demux(self._media.stream):
                    yield packet
                    if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
                        return
                return
            except IndexError:
                return  # PyAV's end of a file in which more streams turned up than its header had
            except MEDIA_ERRORS:
                self._note_failure()

    def _note_failure(self) -> None:
        self._failures += 1
        self._failures_in_a_row += 1

    def _inspect(self, frame: AudioFrame) -> None:
        pts = frame.pts
        if pts is not None:
            self._last = frame, pts
        if self._media.is_float:
            samples = channels_of(frame)
            if not np.isfinite(samples.min()) or not np.isfinite(samples.max()):
                raise BadSamples(f"{self.name} has samples that are not numbers or infinite: export it again")

    def _end_s(self) -> float:
        """By the file's own clock; only now, because it is slow to tell."""
        if self._last is None:
            return 0.0
        frame, pts = self._last
        return float(pts * (frame.time_base or 0)) + frame.samples / max(frame.sample_rate, 1)

    def _require_sound(self) -> None:
        if self._n_samples:
            return
        if self._failures:
            raise NotAudio(f"{self.name} is damaged: nothing in it could be decoded; export or download it again")
        raise AudioEmpty(f"{self.name} has no sound in it: there is not one sample")

    def _warnings(self) -> Iterator[str]:
        decoded_s = self._n_samples / SAMPLE_RATE
        if self._failures:
            places = "one damaged place was" if self._failures == 1 else f"{self._failures} damaged places were"
            yield f"{self.name}: {places} skipped"
        promised_s = self._media.promised_s
        if promised_s is not None and max(decoded_s, self._end_s()) < promised_s - EARLY_END_S:
            yield f"{self.name} ends early: transcribed the first {decoded_s:.1f} s of {promised_s:.1f} s"
