"""A client of one live session: streams clips in real time, records what came back and when, and times each word."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.errors import EngineError

CHUNK_S = 0.1
LEAD_S, PAUSE_S = 0.5, 1.2  # silence before the first clip and after each, long enough to end a turn
MAX_FINAL_TEXT_S = 600.0
TRANSCRIPTION = "conversation.item.input_audio_transcription"

Int16 = npt.NDArray[np.int16]


@dataclass(frozen=True)
class TextEvent:
    """A piece of text, and when it arrived."""

    item: str
    text: str
    at_s: float


@dataclass(frozen=True)
class TimedWord:
    text: str
    at_s: float  # when its audio was sent, or when its text arrived


@dataclass
class LiveSession:
    """Everything that one session sent and received; all times are from one clock."""

    starts: tuple[int, ...]  # first sample of each clip
    sent_s: list[float] = field(default_factory=list)  # when each chunk was sent
    deltas: list[TextEvent] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)  # sample after each turn, by item
    completed: dict[str, TextEvent] = field(default_factory=dict)

    def sent_at_s(self, sample: int) -> float:
        """When this sample was sent."""
        return self.sent_s[min(max(sample, 0) // round(CHUNK_S * SAMPLE_RATE), len(self.sent_s) - 1)]

    @property
    def is_faithful(self) -> bool:
        """Whether the final text of every turn is its deltas joined."""
        return all(
            turn.text == "".join(delta.text for delta in self.deltas if delta.item == item)
            for item, turn in self.completed.items()
        )

    @property
    def text(self) -> str:
        return " ".join(turn.text for turn in self.completed.values())


def delta_words(deltas: Sequence[TextEvent]) -> list[TimedWord]:
    """The words of the deltas: each arrives with its last letter, and a turn starts a new one."""
    words: list[TimedWord] = []
    text, at_s, item = "", 0.0, ""
    for delta in deltas:
        for letter in delta.text if delta.item == item else " " + delta.text:
            if letter.isspace():
                words.append(TimedWord(text, at_s))
                text = ""
            elif letter.isalnum():
                text, at_s = text + letter.lower(), delta.at_s
        item = delta.item
    return [word for word in [*words, TimedWord(text, at_s)] if word.text]


def delays_s(spoken: Sequence[TimedWord], received: Sequence[TimedWord]) -> list[float]:
    """Delays from the end of a word's audio to its text, for words that are in both, in order."""
    matcher = SequenceMatcher(None, [word.text for word in spoken], [word.text for word in received], autojunk=False)
    return [
        received[block.b + index].at_s - spoken[block.a + index].at_s
        for block in matcher.get_matching_blocks()
        for index in range(block.size)
    ]


def letters_only(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())


def join_with_silence(clips: Sequence[Int16]) -> tuple[Int16, tuple[int, ...]]:
    """The clips with silence around them, and the first sample of each."""
    parts, starts, position = [_silence(LEAD_S)], [], round(LEAD_S * SAMPLE_RATE)
    for clip in clips:
        starts.append(position)
        parts += [clip, _silence(PAUSE_S)]
        position += clip.size + parts[-1].size
    return np.concatenate(parts), tuple(starts)


async def stream_clips(url: str, clips: Sequence[Int16], delay_s: float) -> LiveSession:
    """`delay_s` staggers the sessions."""
    from websockets.asyncio.client import connect

    samples, starts = join_with_silence(clips)
    session = LiveSession(starts)
    await asyncio.sleep(delay_s)
    websocket_url = url.replace("http", "ws", 1) + "/v1/realtime?intent=transcription"
    async with connect(websocket_url, max_size=None, compression=None) as connection:
        await connection.send(json.dumps(_session_update()))
        sending = asyncio.create_task(_send(connection, samples, session))
        receiving = asyncio.create_task(_receive(connection, session))
        try:
            await asyncio.wait([sending, receiving], return_when=asyncio.FIRST_COMPLETED)
            await sending
            await _wait_completed(session, receiving)
        finally:
            receiving.cancel()
            sending.cancel()
            await asyncio.gather(receiving, sending, return_exceptions=True)
    return session


async def _send(connection: Any, samples: Int16, session: LiveSession) -> None:
    size = round(CHUNK_S * SAMPLE_RATE)
    started_s = time.perf_counter()
    for number, start in enumerate(range(0, samples.size, size), start=1):
        await asyncio.sleep(max(0.0, started_s + number * CHUNK_S - time.perf_counter()))
        encoded = base64.b64encode(samples[start : start + size].tobytes()).decode()
        await connection.send(json.dumps({"type": "input_audio_buffer.append", "audio": encoded}))
        session.sent_s.append(time.perf_counter())


async def _receive(connection: Any, session: LiveSession) -> None:
    async for message in connection:
        event, now_s = json.loads(message), time.perf_counter()
        match event["type"]:
            case "error":
                raise EngineError(f"the server sent an error: {event['error']['message']}")
            case "input_audio_buffer.speech_stopped":
                session.ends[event["item_id"]] = event["audio_end_ms"] * SAMPLE_RATE // 1000
            case kind if kind == f"{TRANSCRIPTION}.delta":
                session.deltas.append(TextEvent(event["item_id"], event["delta"], now_s))
            case kind if kind == f"{TRANSCRIPTION}.completed":
                session.completed[event["item_id"]] = TextEvent(event["item_id"], event["transcript"], now_s)
            case kind if kind == f"{TRANSCRIPTION}.failed":
                raise EngineError(f"a turn failed: {event['error']['message']}")


async def _wait_completed(session: LiveSession, receiving: asyncio.Task[None]) -> None:
    deadline_s = time.perf_counter() + MAX_FINAL_TEXT_S
    while len(session.completed) < len(session.ends) or not session.ends:
        if receiving.done():
            receiving.result()
            raise EngineError("the server closed a session early")
        if time.perf_counter() > deadline_s:
            raise EngineError(f"a turn had no text {MAX_FINAL_TEXT_S:g} s after its end")
        await asyncio.sleep(CHUNK_S / 2)


def _session_update() -> dict[str, Any]:
    audio = {"format": {"type": "audio/pcm", "rate": SAMPLE_RATE}, "transcription": {"model": "whisper-1"}}
    return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": audio}}}


def _silence(seconds: float) -> Int16:
    return np.zeros(round(seconds * SAMPLE_RATE), np.int16)
