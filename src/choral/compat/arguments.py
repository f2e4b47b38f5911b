"""Arguments that faster-whisper and openai-whisper share, as Choral's options take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def read_clips(clip_timestamps: str | Iterable[Any] | None) -> tuple[float, ...]:
    """start, end, start, end, … in seconds, from a text, numbers or dicts; empty: all of the audio."""
    if isinstance(clip_timestamps, str):
        clip_timestamps = [part for part in clip_timestamps.split(",") if part.strip()]
    seconds: list[float] = []
    for clip in clip_timestamps or ():
        seconds += map(float, (clip["start"], clip["end"]) if isinstance(clip, Mapping) else (clip,))
    return () if seconds == [0.0] else tuple(seconds)


def read_temperatures(temperature: float | Iterable[float]) -> tuple[float, ...]:
    return tuple(temperature) if isinstance(temperature, Iterable) else (temperature,)
