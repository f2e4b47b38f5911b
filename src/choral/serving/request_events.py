"""A request to transcribe, and the events that it reports: zero or more of the others, then one that ends it.

`RequestFinished` or `RequestFailed` is always the last event, and there is exactly one of them; a cancelled request
fails with `concurrent.futures.CancelledError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from choral.options import Priority, TranscribeOptions
from choral.transcript import Segment, Transcript

if TYPE_CHECKING:
    from choral.audio.recording import AudioInput, Recording
    from choral.serving.input_sources import OpenFile
    from choral.speakers.reference_clips import ReferenceClip


@dataclass(frozen=True, kw_only=True, eq=False)
class TranscribeRequest:
    audio: AudioInput | Recording | OpenFile
    options: TranscribeOptions
    model: str | None = None  # of a server with several; None: its default model
    text: str | None = None  # to be aligned with the audio; None: the audio is transcribed
    wants_text: bool = True  # False: only its speakers are found
    references: tuple[ReferenceClip, ...] = ()  # of known voices
    priority: Priority = "interactive"
    client_waits: bool = False  # shorter time limits, and other lanes than jobs
    wants_segments: bool = True  # as they become final, not only in the transcript
    wants_progress: bool = True


@dataclass(frozen=True)
class AudioOpened:
    """The audio has been fetched and decoded; segments of its beginning may have come before."""

    duration_s: float
    fetch_s: float
    decode_s: float
    waited_s: float = 0.0  # for a process that has room for it


@dataclass(frozen=True)
class SegmentReady:
    segment: Segment


@dataclass(frozen=True)
class Progressed:
    done_s: float
    total_s: float


@dataclass(frozen=True)
class RequestFinished:
    transcript: Transcript


@dataclass(frozen=True)
class RequestFailed:
    error: BaseException


RequestEvent = AudioOpened | SegmentReady | Progressed | RequestFinished | RequestFailed
OnEvent = Callable[[RequestEvent], Any]
