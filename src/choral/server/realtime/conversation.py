"""The items of a live session that clients can retrieve and delete: the last ones, with their text."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from choral.server.api_errors import ApiError

MAX_ITEMS, MAX_TEXT_CHARACTERS = 256, 2**20


class Conversation:
    def __init__(self) -> None:
        self._transcripts: OrderedDict[str, str | None] = OrderedDict()  # None: not complete
        self._n_characters = 0

    @property
    def last_id(self) -> str | None:
        return next(reversed(self._transcripts), None)

    def add(self, item_id: str) -> str | None:
        """Append an item, and return the id of the one before it."""
        previous_id = self.last_id
        self._transcripts[item_id] = None
        self._trim()
        return previous_id

    def complete(self, item_id: str, transcript: str) -> None:
        if item_id in self._transcripts:
            self._transcripts[item_id] = transcript
            self._n_characters += len(transcript)
            self._trim()

    def require_new(self, item_id: str) -> None:
        if item_id in self._transcripts:
            raise ApiError(f"there is an item {item_id} already", param="item.id", code="item_exists")

    def retrieve(self, item_id: str) -> dict[str, Any]:
        self._require(item_id)
        return make_item(item_id, self._transcripts[item_id])

    def delete(self, item_id: str) -> None:
        self._require(item_id)
        self._remove(item_id)

    def _require(self, item_id: str) -> None:
        if item_id not in self._transcripts:
            text = f"there is no such item: the last {MAX_ITEMS} are kept"
            raise ApiError(text, param="item_id", code="item_not_found")

    def _trim(self) -> None:
        while len(self._transcripts) > MAX_ITEMS or self._n_characters > MAX_TEXT_CHARACTERS:
            self._remove(next(iter(self._transcripts)))

    def _remove(self, item_id: str) -> None:
        self._n_characters -= len(self._transcripts.pop(item_id) or "")


def make_item(item_id: str, transcript: str | None) -> dict[str, Any]:
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_audio", "transcript": transcript}],
    }
