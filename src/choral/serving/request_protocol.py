"""Messages between a request pool and its processes: JSON with a length before it, descriptors beside it.

To the process: `ProcessConfig` once, then `StartMessage` (with the descriptor of its input, if it has one) and the
numbers of requests to cancel. From the process: one `ProcessMessage` per event. There is no pickle: a process parses
hostile media, and one that was taken over must not own its parent.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from choral import errors
from choral.diarization import Speaker, SpeakerTurn
from choral.options import Priority, TranscribeOptions
from choral.serving.request_inputs import InputLimits, InputRef
from choral.speakers.reference_clips import ReferenceClip
from choral.transcript import Segment, Transcript, Word

LENGTH_BYTES = 4
MAX_MESSAGE_BYTES = 2**28  # a process that was taken over may send anything; ten hours with words are 30 MB
READ_BYTES = 128 * 1024

MessageKind = Literal["ready", "alive", "fetched", "opened", "segments", "progressed", "finished", "failed"]
ProcessMessage = list[Any]  # its kind, the number of the request, and the values


class BadMessage(Exception):
    """The other side does not keep to the protocol."""


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    limits: InputLimits
    max_memory_s: float  # of one recording; the rest goes to a file
    n_requests: int  # that may run at once


@dataclass(frozen=True, kw_only=True)
class StartMessage:
    id: int
    input: InputRef
    options: TranscribeOptions
    text: str | None  # to be aligned
    wants_text: bool
    references: tuple[ReferenceClip, ...]
    priority: Priority
    client_waits: bool
    wants_segments: bool
    wants_progress: bool


def encode_config(config: ProcessConfig) -> bytes:
    return frame(["config", asdict(config)])


def decode_config(message: ProcessMessage) -> ProcessConfig:
    fields = message[1]
    limits = fields.pop("limits")
    for name in ("roots", "allowed_hosts"):
        limits[name] = None if limits[name] is None else tuple(limits[name])
    return ProcessConfig(limits=InputLimits(**limits), **fields)


def encode_start(message: StartMessage) -> bytes:
    ref = message.input
    # Only what differs from the defaults: a path is the common case.
    fields = {name: value for name, value in vars(ref).items() if value} if ref.kind != "samples" else asdict(ref)
    flags = [message.priority, message.client_waits, message.wants_segments, message.wants_progress]
    text = [message.text, message.wants_text]
    references = [[clip.name, clip.url] for clip in message.references]
    return frame(["start", message.id, fields, message.options.changed(), flags, text, references])


def decode_start(message: ProcessMessage) -> StartMessage:
    _, number, ref, options, flags, (text, wants_text), references = message
    priority, client_waits, wants_segments, wants_progress = flags
    return StartMessage(
        id=number,
        input=InputRef(**ref | {name: tuple(ref.get(name, ())) for name in ("warnings", "channel_peaks")}),
        options=TranscribeOptions.of(**options),
        text=text,
        wants_text=wants_text,
        references=tuple(ReferenceClip(*clip) for clip in references),
        priority=priority,
        client_waits=client_waits,
        wants_segments=wants_segments,
        wants_progress=wants_progress,
    )


def frame(message: ProcessMessage) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return len(body).to_bytes(LENGTH_BYTES) + body


def encode_segment(segment: Segment) -> list[Any]:
    words = segment.words and [[word.text, word.start, word.end, word.probability] for word in segment.words]
    rest = [words, segment.token_logprobs, segment.channel, segment.language, segment.speaker]
    return [*list(vars(segment).values())[:-5], *rest]


def decode_segment(values: list[Any]) -> Segment:
    *scores, words, logprobs, channel, language, speaker = values
    number, seek, start, end, text, tokens, temperature, avg_logprob, ratio, no_speech_prob = scores
    return Segment(
        number,
        seek,
        start,
        end,
        text,
        tuple(tokens),
        temperature,
        avg_logprob,
        ratio,
        no_speech_prob,
        None if words is None else tuple([Word(w[0], w[1], w[2], w[3], channel, speaker) for w in words]),
        None if logprobs is None else tuple(logprobs),
        channel,
        language,
        speaker,
    )


def encode_transcript(transcript: Transcript, n_sent: int) -> list[Any]:
    """Without the first `n_sent` segments, which the other side has."""
    segments = [encode_segment(segment) for segment in transcript.segments[n_sent:]]
    return [
        segments,
        transcript.text,
        transcript.language,
        transcript.language_probability,
        transcript.duration,
        transcript.task,
        transcript.warnings,
        [list(vars(speaker).values()) for speaker in transcript.speakers],
        [list(vars(turn).values()) for turn in transcript.turns],
    ]


def decode_transcript(values: list[Any], segments: list[Segment]) -> Transcript:
    """`segments`: those that were sent before."""
    rest, text, language, probability, duration, task, warnings, speakers, turns = values
    every = (*segments, *[decode_segment(each) for each in rest])
    known = tuple(Speaker(name, total_s, tuple(embedding)) for name, total_s, embedding in speakers)
    spoken = tuple(SpeakerTurn(*turn) for turn in turns)
    return Transcript(text, every, language, probability, duration, task, tuple(warnings), known, spoken)


def encode_error(error: errors.ChoralError) -> list[Any]:
    return [type(error).__name__, str(error), vars(error)]


def decode_error(values: list[Any]) -> errors.ChoralError:
    name, text, attributes = values
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.ChoralError)):
        raise BadMessage(f"an error of the class {name!r}")
    error = kind(str(text))
    for attribute in ("is_retryable", "retry_after_s"):  # of FetchFailed and QueueFull
        if attribute in attributes:
            setattr(error, attribute, attributes[attribute])
    return error


class FrameReader:
    """Collects what arrives, and returns the messages that are complete."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[ProcessMessage]:
        self._data += data
        start, n_data = 0, len(self._data)
        while n_data - start >= LENGTH_BYTES:
            n_bytes = int.from_bytes(self._data[start : start + LENGTH_BYTES])
            if n_bytes > MAX_MESSAGE_BYTES:
                raise BadMessage(f"a message of {n_bytes:,} bytes")
            stop = start + LENGTH_BYTES + n_bytes
            if stop > n_data:
                break
            yield _parse(self._data[start + LENGTH_BYTES : stop])
            start = stop
        del self._data[:start]


def receive(channel: socket.socket) -> tuple[ProcessMessage, int | None] | None:
    """Wait for one message with its descriptor; None when the other side has closed the connection."""
    head, fds, _, _ = socket.recv_fds(channel, LENGTH_BYTES, maxfds=1)
    if not head:
        return None
    head += _receive_exactly(channel, LENGTH_BYTES - len(head))
    body = _receive_exactly(channel, int.from_bytes(head))
    return _parse(body), fds[0] if fds else None


def _receive_exactly(channel: socket.socket, n_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < n_bytes:
        more = channel.recv(n_bytes - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def _parse(body: bytes | bytearray) -> ProcessMessage:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage(str(error)) from error
    if not isinstance(message, list) or not message:
        raise BadMessage("a message that is not a list")
    return message
