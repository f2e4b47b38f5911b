"""OpenAI's server events of a transcription session, each with its own `event_id`."""

from __future__ import annotations

import secrets
from typing import Any

from choral.audio.constants import SAMPLE_RATE
from choral.server.api_errors import ApiError, error_fields
from choral.server.realtime.conversation import make_item

Event = dict[str, Any]
BUFFER = "input_audio_buffer"
TRANSCRIPTION = "conversation.item.input_audio_transcription"


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(10)}"


def make_event(event_type: str, **fields: Any) -> Event:
    return {"type": event_type, "event_id": new_id("event"), **fields}


def error(api_error: ApiError, event_id: str | None = None) -> Event:
    """`event_id` is the id of the client event that failed."""
    return make_event("error", error={**error_fields(api_error)["error"], "event_id": event_id})


def warning(param: str, message: str, code: str, event_id: str | None = None) -> Event:
    """Not an event of OpenAI's: clients ignore types that they do not know."""
    fields = {"message": f"{param}: {message}", "param": param, "code": code, "event_id": event_id}
    return make_event("warning", warning=fields)


def speech_started(item_id: str, start: int) -> Event:
    """`start` is a sample, counted from the start of the session."""
    return make_event(f"{BUFFER}.speech_started", audio_start_ms=_to_ms(start), item_id=item_id)


def speech_stopped(item_id: str, stop: int) -> Event:
    return make_event(f"{BUFFER}.speech_stopped", audio_end_ms=_to_ms(stop), item_id=item_id)


def _to_ms(n_samples: int) -> int:
    return n_samples * 1000 // SAMPLE_RATE


def committed(item_id: str, previous_id: str | None) -> Event:
    return make_event(f"{BUFFER}.committed", previous_item_id=previous_id, item_id=item_id)


def item_added(item_id: str, previous_id: str | None, *, is_beta: bool) -> list[Event]:
    """The item is part of the conversation: one event in the beta."""
    item = make_item(item_id, None)
    added = ("conversation.item.created",) if is_beta else ("conversation.item.added", "conversation.item.done")
    return [make_event(event_type, previous_item_id=previous_id, item=item) for event_type in added]


def cleared() -> Event:
    return make_event(f"{BUFFER}.cleared")


def delta(item_id: str, text: str, logprobs: list[dict[str, Any]] | None = None) -> Event:
    """`logprobs` of the tokens, if they are asked for."""
    fields = {"item_id": item_id, "content_index": 0, "delta": text}
    return make_event(f"{TRANSCRIPTION}.delta", **fields, **({} if logprobs is None else {"logprobs": logprobs}))


def completed(item_id: str, text: str, duration_s: float, more: dict[str, Any]) -> Event:
    """`more` are the fields `speaker`, `languages` and `logprobs`, if they are asked for."""
    usage = {"type": "duration", "seconds": round(duration_s, 3)}
    fields = {"item_id": item_id, "content_index": 0, "transcript": text, "usage": usage, **more}
    return make_event(f"{TRANSCRIPTION}.completed", **fields)


def failed(item_id: str, api_error: ApiError) -> Event:
    fields = error_fields(api_error)["error"]
    return make_event(f"{TRANSCRIPTION}.failed", item_id=item_id, content_index=0, error=fields)
