"""What clients are told: OpenAI's server events of a transcription session, each with an id of its own."""

from __future__ import annotations

import secrets
from typing import Any

from choral.server.api_errors import ApiError, error_fields

Event = dict[str, Any]
TRANSCRIPTION = "conversation.item.input_audio_transcription"


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(10)}"


def event(kind: str, **fields: Any) -> Event:
    return {"type": kind, "event_id": new_id("event"), **fields}


def error(problem: ApiError, event_id: str | None) -> Event:
    """`event_id` is that of the client's event which cannot be done."""
    return event("error", error={**error_fields(problem)["error"], "event_id": event_id})


def item_events(item_id: str, previous_id: str | None, *, is_beta: bool) -> list[Event]:
    """A turn takes its place in the conversation; the beta had one event for it."""
    item = {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_audio", "transcript": None}],
    }
    kinds = ("conversation.item.created",) if is_beta else ("conversation.item.added", "conversation.item.done")
    return [event(kind, previous_item_id=previous_id, item=item) for kind in kinds]


def delta(item_id: str, text: str) -> Event:
    return event(f"{TRANSCRIPTION}.delta", item_id=item_id, content_index=0, delta=text)


def completed(item_id: str, text: str, duration_s: float) -> Event:
    usage = {"type": "duration", "seconds": round(duration_s, 3)}
    return event(f"{TRANSCRIPTION}.completed", item_id=item_id, content_index=0, transcript=text, usage=usage)


def failed(item_id: str, problem: ApiError) -> Event:
    fields = error_fields(problem)["error"]
    return event(f"{TRANSCRIPTION}.failed", item_id=item_id, content_index=0, error=fields)
