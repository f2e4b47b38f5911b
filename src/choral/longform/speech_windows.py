"""The windows of batched mode, found while the recording is still being decoded.

Speech keeps its pauses, and short pauses do not end a part: times stay those of the recording, and the model gets the
pauses that punctuation comes from. Neighbouring parts share a window, with the pause between them; one that does
not fit is cut at a quiet position. A window has some of the pauses around it, where the voice detector may have missed
quiet speech. No window crosses the border of a requested clip.

A window is returned as soon as no later audio can change it, so the windows do not depend on how the audio arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from choral.audio.constants import HOP_LENGTH, MEL_FRAMES_PER_SECOND, WINDOW_MEL_FRAMES
from choral.audio.recording import Recording
from choral.audio.second_opinion import SecondOpinion
from choral.audio.speech_spans import FRAME_SAMPLES, SpanFinder
from choral.audio.vad import PIECE_SAMPLES, probability_pieces
from choral.longform.cuts import NO_END, Clip, available_frames, intersect, n_mel_frames, quietest_frame
from choral.options import TranscribeOptions

MAX_PAUSE_FRAMES = 2 * MEL_FRAMES_PER_SECOND  # a longer silence ends a part
MAX_MARGIN_FRAMES = 2 * MEL_FRAMES_PER_SECOND  # of a pause before and after a window, where there is room
CUT_SEARCH_FRAMES = 8 * MEL_FRAMES_PER_SECOND  # before the limit, searched for the quietest position


@dataclass(frozen=True)
class SpeechUpdate:
    """What one more piece of a recording shows, in mel frames."""

    parts: tuple[Clip, ...]  # in order; one that starts where the last ended, in this update or before, continues it
    min_next_start: int  # no later part starts before
    spans: tuple[Clip, ...] = ()  # the speech in the parts, without pauses; the last may come again, longer


@dataclass(frozen=True)
class SpeechWindow(Clip):
    speech: tuple[Clip, ...] = ()  # what the voice detector heard in it


def windows_of(
    recording: Recording, clips: Sequence[Clip], options: TranscribeOptions, *, only_speech: bool
) -> Iterator[SpeechWindow]:
    """The windows over the speech in these clips, or over all that they contain."""
    cutter, speech = WindowCutter(recording, clips), HeardSpeech()
    for update in speech_updates(recording, options) if only_speech else audio_updates(recording):
        speech.add(update.spans)
        for part in update.parts:
            yield from map(speech.window, cutter.add(part))
        yield from map(speech.window, cutter.settle(update.min_next_start))
        if cutter.is_done:
            return
    yield from map(speech.window, cutter.finish())


class HeardSpeech:
    """The spans of speech that the next windows may contain."""

    def __init__(self) -> None:
        self._spans: list[Clip] = []

    def add(self, spans: Iterable[Clip]) -> None:
        for span in spans:
            if self._spans and self._spans[-1].start == span.start:
                self._spans.pop()
            self._spans.append(span)

    def window(self, clip: Clip) -> SpeechWindow:
        """The clip with its speech. Windows come in order, so what ends before it is forgotten."""
        self._spans = [span for span in self._spans if span.stop > clip.start]
        [inside] = intersect([clip], self._spans)
        return SpeechWindow(clip.start, clip.stop, tuple(inside))


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


def heard_in(recording: Recording, options: TranscribeOptions) -> list[Clip]:
    """All spans of speech, without the pauses between them."""
    speech = HeardSpeech()
    for update in speech_updates(recording, options):
        speech.add(update.spans)
    return list(speech.window(Clip(0, n_mel_frames(recording))).speech)


def speech_updates(recording: Recording, options: TranscribeOptions) -> Iterator[SpeechUpdate]:
    """Speech by the voice detector: padded, and joined over short pauses."""
    finder = SpanFinder(
        threshold=options.vad_threshold, min_silence_s=options.vad_min_silence, pad_s=options.vad_padding
    )
    opinion = SecondOpinion(
        recording, threshold=options.vad_threshold, min_silence_s=options.vad_min_silence, pad_s=options.vad_padding
    )
    joiner = SpeechJoiner()
    n_heard, incomplete = 0, np.zeros(0, np.float32)  # frames; the last, if the recording ends in it
    for probabilities in probability_pieces(recording):
        n_heard += probabilities.size
        n_whole = probabilities.size - (recording.available(n_heard * FRAME_SAMPLES) < n_heard * FRAME_SAMPLES)
        incomplete = probabilities[n_whole:]
        found = finder.push(probabilities[:n_whole].tolist())
        spans = [frames_covering(span.start, span.stop) for span in opinion.add(found)]
        if (span := finder.open_span) is not None:
            spans += [Clip(span.start // HOP_LENGTH, span.stop // HOP_LENGTH) for span in opinion.add([span])]
        else:
            found = opinion.search_until(finder.min_next_start)
            spans += [frames_covering(span.start, span.stop) for span in found]
        parts = [part for span in spans for part in joiner.add(span.start, span.stop)]
        min_next_start = min(finder.min_next_start, opinion.n_decided) // HOP_LENGTH
        yield SpeechUpdate(tuple(parts), joiner.min_next_start(min_next_start), tuple(spans))
    n_frames = n_mel_frames(recording)
    found = [
        *opinion.add(finder.finish(recording.n_samples, incomplete.tolist())),
        *opinion.search_until(recording.n_samples),
    ]
    spans = [frames_covering(span.start, min(span.stop, recording.n_samples)) for span in found]
    spans = [Clip(span.start, min(span.stop, n_frames)) for span in spans]
    parts = [part for span in spans for part in joiner.add(span.start, span.stop)]
    yield SpeechUpdate(tuple(parts), n_frames, tuple(spans))


def audio_updates(recording: Recording) -> Iterator[SpeechUpdate]:
    """Everything, as one part that grows."""
    n_samples = n_frames = 0
    for samples in recording.pieces(PIECE_SAMPLES):
        n_samples += samples.size
        part = Clip(n_frames, n_samples // HOP_LENGTH)
        n_frames = part.stop
        yield SpeechUpdate((part,), n_frames)


def frames_covering(start: int, stop: int) -> Clip:
    """The mel frames that contain these samples."""
    return Clip(start // HOP_LENGTH, -(-stop // HOP_LENGTH))


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
        self._stop = 0  # of the window before, in the same clip

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
            self._part = part if self._window else self._with_pause_before(part)
        while self._part.stop - (start := (self._window or self._part).start) > WINDOW_MEL_FRAMES:
            limit = start + WINDOW_MEL_FRAMES
            if self._window is not None and self._part.start > limit - CUT_SEARCH_FRAMES:
                yield from self._release(self._part.start)
                self._part = self._with_pause_before(self._part)
                continue
            cut = quietest_frame(self._recording, limit - CUT_SEARCH_FRAMES, limit)
            yield Clip(start, cut)
            self._window, self._part, self._stop = None, Clip(cut, self._part.stop), cut

    def _with_pause_before(self, part: Clip) -> Clip:
        """The voice detector may miss quiet speech at the edge of a pause, so a window begins in the pause."""
        return Clip(max(part.start - MAX_MARGIN_FRAMES, self._stop, self._clips[-1].start), part.stop)

    def _end_part(self) -> None:
        """The last part joins the window, which it fits."""
        if self._part is not None:
            start = self._part.start if self._window is None else self._window.start
            self._window, self._part = Clip(start, self._part.stop), None

    def _end_clip(self) -> Iterator[Clip]:
        clip = self._clips.pop()
        self._end_part()
        yield from self._release(clip.stop)
        self._stop = 0

    def _release(self, limit: int = NO_END) -> Iterator[Clip]:
        """The window with as much of the pause after it as there is room for; no further than `limit`."""
        if self._window is not None:
            start, stop = self._window.start, self._window.stop
            stop = min(start + WINDOW_MEL_FRAMES, stop + MAX_MARGIN_FRAMES, limit)
            self._stop = available_frames(self._recording, stop)
            yield Clip(start, self._stop)
            self._window = None
