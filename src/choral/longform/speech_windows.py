"""The windows of batched mode, found while the recording is still being decoded.

Speech keeps its pauses, and short pauses do not end a part: times stay those of the recording, and the model gets the
pauses that punctuation comes from. Neighbouring parts that fit share a window, with the pause between them; long parts
are cut at quiet positions. No window crosses the border of a requested clip.

A window is returned as soon as no later audio can change it, so the windows do not depend on how the audio arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from choral.audio.constants import HOP_LENGTH, MEL_FRAMES_PER_SECOND, WINDOW_MEL_FRAMES
from choral.audio.recording import Recording
from choral.audio.speech_spans import FRAME_SAMPLES
from choral.audio.vad import PIECE_FRAMES, SpeechFinder
from choral.longform.cuts import Clip, intersect, n_mel_frames, quietest_frame
from choral.types import TranscribeOptions

MAX_PAUSE_FRAMES = 2 * MEL_FRAMES_PER_SECOND  # a longer silence ends a part
CUT_SEARCH_FRAMES = 8 * MEL_FRAMES_PER_SECOND  # before the limit, searched for the quietest position
PIECE_SAMPLES = PIECE_FRAMES * FRAME_SAMPLES


@dataclass(frozen=True)
class SpeechUpdate:
    """What one more piece of a recording shows, in mel frames."""

    parts: tuple[Clip, ...]  # in order; one that starts where the last ended, in this update or before, continues it
    min_next_start: int  # no later part starts before


def windows_of(
    recording: Recording, clips: Sequence[Clip], options: TranscribeOptions, *, only_speech: bool
) -> Iterator[Clip]:
    """The windows over the speech in these clips, or over all that they contain."""
    cutter = WindowCutter(recording, clips)
    for update in speech_updates(recording, options) if only_speech else audio_updates(recording):
        for part in update.parts:
            yield from cutter.add(part)
        yield from cutter.settle(update.min_next_start)
        if cutter.is_done:
            return
    yield from cutter.finish()


def speech_in(recording: Recording, clips: list[Clip], options: TranscribeOptions) -> list[Clip]:
    """The parts of all clips with speech."""
    joined: list[Clip] = []
    for update in speech_updates(recording, options):
        for part in update.parts:
            if joined and part.start == joined[-1].stop:
                joined[-1] = Clip(joined[-1].start, part.stop)
            else:
                joined.append(part)
    return [part for parts in intersect(clips, joined) for part in parts]


def speech_updates(recording: Recording, options: TranscribeOptions) -> Iterator[SpeechUpdate]:
    """Speech by the voice detector: padded, and joined over short pauses."""
    finder = SpeechFinder(
        threshold=options.vad_threshold, min_silence_s=options.vad_min_silence, pad_s=options.vad_padding
    )
    joiner = SpeechJoiner()
    for samples in recording.pieces(PIECE_SAMPLES):
        parts = [part for span in finder.push(samples) for part in joiner.add(*frames_covering(span.start, span.stop))]
        if (span := finder.open_span) is not None:
            parts += joiner.add(span.start // HOP_LENGTH, span.stop // HOP_LENGTH)
        yield SpeechUpdate(tuple(parts), joiner.min_next_start(finder.min_next_start // HOP_LENGTH))
    n_frames = n_mel_frames(recording)
    last = [frames_covering(span.start, span.stop) for span in finder.finish()]
    parts = [part for start, stop in last for part in joiner.add(start, min(stop, n_frames))]
    yield SpeechUpdate(tuple(parts), n_frames)


def audio_updates(recording: Recording) -> Iterator[SpeechUpdate]:
    """Everything, as one part that grows."""
    n_samples = n_frames = 0
    for samples in recording.pieces(PIECE_SAMPLES):
        n_samples += samples.size
        part = Clip(n_frames, n_samples // HOP_LENGTH)
        n_frames = part.stop
        yield SpeechUpdate((part,), n_frames)


def frames_covering(start: int, stop: int) -> tuple[int, int]:
    """The mel frames that contain these samples."""
    return start // HOP_LENGTH, -(-stop // HOP_LENGTH)


class SpeechJoiner:
    """Joins spans of speech over short pauses, in mel frames."""

    def __init__(self) -> None:
        self._stop: int | None = None

    def add(self, start: int, stop: int) -> list[Clip]:
        """What the next span adds, with the pause before it if that is short; a span may be added again when longer."""
        if self._stop is not None and start - self._stop < MAX_PAUSE_FRAMES:
            start = self._stop
        if stop <= start:
            return []
        self._stop = stop
        return [Clip(start, stop)]

    def min_next_start(self, min_span_start: int) -> int:
        """No later part starts before, if no later span starts before `min_span_start`."""
        if self._stop is not None and min_span_start - self._stop < MAX_PAUSE_FRAMES:
            return self._stop
        return min_span_start


class WindowCutter:
    """Cuts parts of speech to windows. Holds the last window and the last part, which may both still grow."""

    def __init__(self, recording: Recording, clips: Sequence[Clip]) -> None:
        self._recording = recording
        self._clips = list(reversed(clips))
        self._window: Clip | None = None  # of ended parts; the last part may belong to it too
        self._part: Clip | None = None

    @property
    def is_done(self) -> bool:
        return not self._clips

    def add(self, part: Clip) -> Iterator[Clip]:
        """The windows that are final given the next part, or the next piece of the last part."""
        while self._clips and part.stop > self._clips[-1].start:
            clip = self._clips[-1]
            inside = Clip(max(part.start, clip.start), min(part.stop, clip.stop))
            if inside.start < inside.stop:
                yield from self._extend(inside)
            if part.stop < clip.stop:
                return
            yield from self._end_clip()

    def settle(self, min_next_start: int) -> Iterator[Clip]:
        """The windows that are final because no later part starts before this frame."""
        while self._clips and self._clips[-1].stop <= min_next_start:
            yield from self._end_clip()
        if self._part is not None and self._part.stop < min_next_start:
            self._end_part()
        if self._part is None and self._window and min_next_start - self._window.start >= WINDOW_MEL_FRAMES:
            yield from self._release()

    def finish(self) -> Iterator[Clip]:
        """The remaining windows, after the last part."""
        if self._clips:
            yield from self._end_clip()
        self._clips.clear()

    def _extend(self, part: Clip) -> Iterator[Clip]:
        if self._part is not None and self._part.stop == part.start:
            self._part = Clip(self._part.start, part.stop)
        else:
            self._end_part()
            self._part = part
        if self._window is not None and self._part.stop - self._window.start > WINDOW_MEL_FRAMES:
            yield from self._release()
        while self._window is None and self._part.stop - self._part.start > WINDOW_MEL_FRAMES:
            limit = self._part.start + WINDOW_MEL_FRAMES
            cut = quietest_frame(self._recording, limit - CUT_SEARCH_FRAMES, limit)
            yield Clip(self._part.start, cut)
            self._part = Clip(cut, self._part.stop)

    def _end_part(self) -> None:
        """The last part joins the window, which it fits."""
        if self._part is not None:
            start = self._part.start if self._window is None else self._window.start
            self._window, self._part = Clip(start, self._part.stop), None

    def _end_clip(self) -> Iterator[Clip]:
        self._clips.pop()
        self._end_part()
        yield from self._release()

    def _release(self) -> Iterator[Clip]:
        if self._window is not None:
            yield self._window
            self._window = None
