"""Channels apart: every channel of a recording is transcribed by itself, and the segments are merged in time.

Each channel has a `Transcription` on a thread of its own; all of them share one caller, so that a request with many
channels gets no larger share of the engine. Segments are merged as soon as no channel can have an earlier one, so their
order depends on nothing but the text.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue

from choral.audio.channel_recording import ChannelRecording
from choral.audio.recording import Recording
from choral.engine.window import Caller
from choral.errors import AudioError
from choral.longform.progress_reporter import OnProgress
from choral.longform.transcriber import Transcriber, Transcription
from choral.options import TranscribeOptions
from choral.transcript import Segment, Transcript


@dataclass(frozen=True)
class ChannelProgress:
    done_s: float
    total_s: float


@dataclass(frozen=True)
class ChannelEnd:
    error: BaseException | None


# From the thread of a channel: its index, and what happened.
ChannelEvent = tuple[int, Segment | ChannelProgress | ChannelEnd]


class ChannelsTranscription:
    """One request in progress, with the interface of `Transcription`."""

    def __init__(
        self,
        transcriber: Transcriber,
        recording: Recording,
        options: TranscribeOptions,
        on_progress: OnProgress | None,
        caller: Caller,
    ) -> None:
        self._transcriber, self._recording, self._options = transcriber, recording, options
        self._on_progress, self._caller = on_progress, caller
        self._events: SimpleQueue[ChannelEvent] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._channels: list[Transcription] = []
        self.segments: list[Segment] = []

    def cancel(self) -> None:
        """From any thread: iteration raises `CancelledError`."""
        with self._lock:
            self._is_cancelled = True
            channels = tuple(self._channels)
        for channel in channels:
            channel.cancel()

    def __iter__(self) -> Iterator[Segment]:
        n_channels = self._recording.n_channels  # of a growing recording, known with its first sample
        merger = ChannelMerger(n_channels)
        progress = [ChannelProgress(0.0, 0.0)] * n_channels
        error: BaseException | None = None
        try:
            self._start(n_channels)
            while not merger.has_ended:
                index, event = self._events.get()
                if isinstance(event, ChannelProgress):
                    progress[index] = event
                    self._report(progress)
                    continue
                if isinstance(event, ChannelEnd) and event.error is not None:
                    error = error or event.error
                    if not isinstance(event.error, AudioError):  # after one, the channels report what is before it
                        self.cancel()
                for segment in merger.add(index, event):
                    yield self._number(segment)
        finally:
            self.cancel()
        if error is not None:
            raise error

    def transcript(self) -> Transcript:
        """The transcript of all segments so far: complete once the iteration has ended."""
        transcripts = [channel.transcript() for channel in self._channels]
        longest = max(transcripts, key=lambda transcript: len(transcript.text))
        warnings = [f"channel {i}: {text}" for i, each in enumerate(transcripts, 1) for text in each.warnings]
        return replace(
            longest,
            text="".join(segment.text for segment in self.segments),
            segments=tuple(self.segments),
            warnings=(*self._recording.warnings, *warnings),
        )

    def _start(self, n_channels: int) -> None:
        for index in range(n_channels):
            transcription = Transcription(
                self._transcriber,
                ChannelRecording(self._recording, index),
                self._options,
                partial(self._put_progress, index),
                self._caller,
            )
            with self._lock:
                self._channels.append(transcription)
                if self._is_cancelled:
                    transcription.cancel()
            # A daemon: a decoder that is stuck in a read must not keep the program from ending.
            threading.Thread(
                target=self._run, args=(index, transcription), name=f"choral-channel-{index + 1}", daemon=True
            ).start()

    def _run(self, index: int, transcription: Transcription) -> None:
        end = ChannelEnd(None)
        try:
            for segment in transcription:
                self._events.put((index, segment))
        except BaseException as error:  # whatever it is, the iteration raises it
            end = ChannelEnd(error)
        self._events.put((index, end))

    def _put_progress(self, index: int, done_s: float, total_s: float) -> None:
        self._events.put((index, ChannelProgress(done_s, total_s)))

    def _report(self, progress: list[ChannelProgress]) -> None:
        if self._on_progress is not None:
            done_s = sum(channel.done_s for channel in progress) / len(progress)
            self._on_progress(done_s, max(channel.total_s for channel in progress))

    def _number(self, segment: Segment) -> Segment:
        numbered = replace(segment, id=len(self.segments))
        self.segments.append(numbered)
        return numbered


class ChannelMerger:
    """Merges the segments of channels, each in order, by their start."""

    def __init__(self, n_channels: int) -> None:
        self._waiting: list[deque[Segment]] = [deque() for _ in range(n_channels)]
        self._has_ended = [False] * n_channels

    @property
    def has_ended(self) -> bool:
        return all(self._has_ended)

    def add(self, index: int, event: Segment | ChannelEnd) -> Iterator[Segment]:
        """The segments that no later one can precede."""
        if isinstance(event, Segment):
            self._waiting[index].append(in_channel(event, index + 1))
        else:
            self._has_ended[index] = True
        while all(self._waiting[i] or self._has_ended[i] for i in range(len(self._waiting))) and any(self._waiting):
            yield min((each for each in self._waiting if each), key=lambda each: each[0].start).popleft()


def in_channel(segment: Segment, channel: int) -> Segment:
    words = segment.words and tuple(replace(word, channel=channel) for word in segment.words)
    return replace(segment, channel=channel, words=words)
