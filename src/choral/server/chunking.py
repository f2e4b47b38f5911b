"""OpenAI's `chunking_strategy`: `auto`, or `server_vad` with its settings, as options of Choral's batched mode."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from choral.server.api_errors import ApiError

NAME = "chunking_strategy"
LONGEST_MS = 60_000
# By OpenAI's names: the option, and the number it takes of theirs.
VAD_OPTIONS: dict[str, tuple[str, Callable[[float], float], float]] = {
    "threshold": ("vad_threshold", lambda value: value, 1),
    "silence_duration_ms": ("vad_min_silence", lambda value: value / 1000, LONGEST_MS),
    "prefix_padding_ms": ("vad_padding", lambda value: value / 1000, LONGEST_MS),  # here it is kept on both sides
}


def read_chunking(text: str | None, parts: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Clients send the object as JSON, or each of its parts in a field of its own."""
    if text is None and not parts:
        return {}
    for name, wrong in (("mode", "sequential"), ("vad", False)):
        if given.get(name) == wrong:
            raise _problem(f"chunking_strategy cuts at silences, and {name} says not to: leave out one of them")
    found: dict[str, Any] = {"mode": "batched", "vad": True}
    for name, value in _strategy(text, parts).items():
        option, convert, most = VAD_OPTIONS[name]
        found[option] = convert(_number(name, value, most))
    return found


def _strategy(text: str | None, parts: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the voice detector; none with `auto`."""
    if text is not None and parts:
        raise _problem("chunking_strategy was given twice: give it once")
    if text == "auto":
        return {}
    strategy = dict(parts) if text is None else _object(text)
    if strategy.pop("type", None) != "server_vad":
        raise _problem('chunking_strategy must be "auto" or an object whose type is "server_vad"')
    for name in strategy:
        if name not in VAD_OPTIONS:
            raise _problem(f"chunking_strategy.{name[:100]} is not supported: {', '.join(VAD_OPTIONS)} are")
    return strategy


def _object(text: str) -> dict[str, Any]:
    try:
        strategy = json.loads(text)
    except (ValueError, RecursionError):
        strategy = None
    return strategy if isinstance(strategy, dict) else {}


def _number(name: str, value: Any, most: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number <= most:
        raise _problem(f"chunking_strategy.{name} must be a number from 0 to {most}")
    return number


def _problem(message: str) -> ApiError:
    return ApiError(message, param=NAME, code="invalid_value")
