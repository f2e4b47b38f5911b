"""Items of a session: created with audio, retrieved, deleted; and all events against the types of OpenAI's client."""

from __future__ import annotations

import base64
import json
from typing import get_args

import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import BaseModel

from audio.media_files import Int16Samples
from choral.server.api_errors import ApiError
from choral.server.realtime.conversation import MAX_ITEMS, MAX_TEXT_CHARACTERS, Conversation
from realtime_client import FORMATS, TRANSCRIPTION, Event, RealtimeClient, encode_audio, words

PHRASE = "ask not what your country can do for you"


def event_types() -> dict[str, type[BaseModel]]:
    """OpenAI's classes of server events by their `type`."""
    kinds = get_args(get_args(RealtimeServerEvent)[0])
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in kinds}


def check_events(events: list[Event]) -> None:
    kinds = event_types()
    for event in events:
        if event["type"] != "warning":  # Choral's own
            kinds[event["type"]].model_validate_json(json.dumps(event), strict=True)


def user_message(audio: bytes, item_id: str) -> Event:
    content = [{"type": "input_audio", "audio": base64.b64encode(audio).decode()}]
    return {"id": item_id, "type": "message", "role": "user", "content": content}


def test_items_and_types_of_all_events(session: RealtimeClient, jfk_samples: Int16Samples) -> None:
    vad = {"type": "server_vad", "silence_duration_ms": 1_500}
    speech = encode_audio(jfk_samples, "pcmu")
    session.configure(format=FORMATS["pcmu"], turn_detection=vad, noise_reduction={"type": "near_field"})
    session.send("conversation.item.create", item=user_message(speech[:32_000], "mine"))
    session.send("conversation.item.create", item=user_message(speech[:32_000], "unwanted"))
    session.send("conversation.item.delete", item_id="unwanted")
    session.append_audio(speech + b"\xff" * 16_000)
    first = session.wait_for_text()
    assert session.events[-1]["item_id"] == "mine"
    assert "fellow" in first
    assert PHRASE in " ".join(words(session.wait_for_text()))
    spoken_id = session.events[-1]["item_id"]
    assert spoken_id not in ("mine", "unwanted")
    assert "conversation.item.deleted" in session.event_types
    for item_id, said in (("mine", "fellow"), (spoken_id, "country")):
        session.send("conversation.item.retrieve", item_id=item_id)
        item = session.wait_for("conversation.item.retrieved")["item"]
        assert said in item["content"][0]["transcript"]
    session.send("conversation.item.retrieve", item_id="unwanted")
    assert session.wait_for_error()["code"] == "item_not_found"
    session.send("conversation.item.create", item=user_message(b"", "mine"))
    assert session.wait_for_error()["code"] == "item_exists"
    text = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
    session.send("conversation.item.create", item=text)
    assert session.wait_for_error()["param"] == "item.content.0.type"
    session.send("input_audio_buffer.clear")
    session.wait_for("input_audio_buffer.cleared")
    assert session.event_types.count(f"{TRANSCRIPTION}.completed") == 2
    check_events(session.events)
    assert {"session.created", "input_audio_buffer.speech_stopped", "error"} <= set(session.event_types)


def test_items_are_bounded() -> None:
    conversation = Conversation()
    assert conversation.add("0") is None
    for number in range(1, MAX_ITEMS + 1):
        assert conversation.add(str(number)) == str(number - 1)
    with pytest.raises(ApiError, match="no such item"):
        conversation.retrieve("0")
    assert conversation.retrieve("1")["content"][0]["transcript"] is None
    conversation.complete("5", "x" * MAX_TEXT_CHARACTERS)
    assert conversation.retrieve("5")
    conversation.complete("9", "y")
    with pytest.raises(ApiError, match="no such item"):
        conversation.retrieve("5")
    conversation.delete("9")
    with pytest.raises(ApiError, match="no such item"):
        conversation.delete("9")
    conversation.complete("9", "of a deleted item")
