"""One live session as a person would have it: clips one after another in real time, and what came back when."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.errors import EngineError

CHUNK_S = 0.1
LEAD_S, PAUSE_S = 0.5, 1.2  # of silence before the first clip and behind each: long enough to end a turn
LAST_TEXT_WITHIN_S = 600.0
TRANSCRIPTION = "conversation.item.input_audio_transcription"

Int16 = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Shown:
    """A piece of text, and when it was there."""

    item: str
    text: str
    at_s: float


@dataclass
class Visit:
    """All of one session; times are of one clock."""

    starts: tuple[int, ...]  # the first sample of each clip
    sent_s: list[float] = field(default_factory=list)  # when each chunk had been sent
    shown: list[Shown] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)  # the sample behind each turn
    completed: dict[str, Shown] = field(default_factory=dict)

    def time_of(self, sample: int) -> float:
        """When this sample had been sent."""
        return self.sent_s[min(max(sample, 0) // round(CHUNK_S * SAMPLE_RATE), len(self.sent_s) - 1)]

    @property
    def is_faithful(self) -> bool:
        """Whether the whole text of every turn is what its pieces were."""
        return all(
            turn.text == "".join(piece.text for piece in self.shown if piece.item == item)
            for item, turn in self.completed.items()
        )

    @property
    def text(self) -> str:
        return " ".join(turn.text for turn in self.completed.values())


def laid_out(clips: Sequence[Int16]) -> tuple[Int16, tuple[int, ...]]:
    """The clips with silence around them, and where each starts."""
    parts, starts, position = [_silence(LEAD_S)], [], round(LEAD_S * SAMPLE_RATE)
    for clip in clips:
        starts.append(position)
        parts += [clip, _silence(PAUSE_S)]
        position += clip.size + parts[-1].size
    return np.concatenate(parts), tuple(starts)


async def speak(url: str, clips: Sequence[Int16], delay_s: float) -> Visit:
    """Starts after a while, so that not all sessions speak in step."""
    from websockets.asyncio.client import connect

    sound, starts = laid_out(clips)
    visit = Visit(starts)
    await asyncio.sleep(delay_s)
    address = url.replace("http", "ws", 1) + "/v1/realtime?intent=transcription"
    async with connect(address, max_size=None, compression=None) as connection:
        await connection.send(json.dumps(_setup()))
        sending = asyncio.create_task(_send(connection, sound, visit))
        hearing = asyncio.create_task(_hear(connection, visit))
        try:
            await asyncio.wait([sending, hearing], return_when=asyncio.FIRST_COMPLETED)
            await sending
            await _until_completed(visit, hearing)
        finally:
            hearing.cancel()
            sending.cancel()
            await asyncio.gather(hearing, sending, return_exceptions=True)
    return visit


async def _send(connection: Any, sound: Int16, visit: Visit) -> None:
    size = round(CHUNK_S * SAMPLE_RATE)
    started_s = time.perf_counter()
    for number, start in enumerate(range(0, sound.size, size), start=1):
        await asyncio.sleep(max(0.0, started_s + number * CHUNK_S - time.perf_counter()))
        encoded = base64.b64encode(sound[start : start + size].tobytes()).decode()
        await connection.send(json.dumps({"type": "input_audio_buffer.append", "audio": encoded}))
        visit.sent_s.append(time.perf_counter())


async def _hear(connection: Any, visit: Visit) -> None:
    async for message in connection:
        event, now_s = json.loads(message), time.perf_counter()
        match event["type"]:
            case "error":
                raise EngineError(f"the server said: {event['error']['message']}")
            case "input_audio_buffer.speech_stopped":
                visit.ends[event["item_id"]] = event["audio_end_ms"] * SAMPLE_RATE // 1000
            case kind if kind == f"{TRANSCRIPTION}.delta":
                visit.shown.append(Shown(event["item_id"], event["delta"], now_s))
            case kind if kind == f"{TRANSCRIPTION}.completed":
                visit.completed[event["item_id"]] = Shown(event["item_id"], event["transcript"], now_s)
            case kind if kind == f"{TRANSCRIPTION}.failed":
                raise EngineError(f"a turn failed: {event['error']['message']}")


async def _until_completed(visit: Visit, hearing: asyncio.Task[None]) -> None:
    deadline_s = time.perf_counter() + LAST_TEXT_WITHIN_S
    while len(visit.completed) < len(visit.ends) or not visit.ends:
        if hearing.done():
            hearing.result()
            raise EngineError("the server ended a session in its middle")
        if time.perf_counter() > deadline_s:
            raise EngineError(f"a turn had no text {LAST_TEXT_WITHIN_S:g} s after its end")
        await asyncio.sleep(CHUNK_S / 2)


def _setup() -> dict[str, Any]:
    heard = {"format": {"type": "audio/pcm", "rate": SAMPLE_RATE}, "transcription": {"model": "whisper-1"}}
    return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": heard}}}


def _silence(seconds: float) -> Int16:
    return np.zeros(round(seconds * SAMPLE_RATE), np.int16)
