"""Deepgram's messages about live audio, made from the events of a live session.

Times of words are estimated from the lengths of words within their turn, and there are no confidences: the field is 1.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from choral import __version__
from choral.server.dialects.deepgram_json import word_fields
from choral.server.realtime.server_events import BUFFER, TRANSCRIPTION
from choral.transcript import Word

CONFIDENCE = 1.0
HIDDEN_ERRORS = ("session_over",)  # the connection is about to be closed as the client asked
NOTHING_TO_COMMIT = "input_audio_buffer_commit_empty"
Fields = dict[str, Any]


@dataclass
class LiveTurn:
    start_s: float
    end_s: float | None = None  # None: it is being spoken
    text: str = ""


class LiveResults:
    """Called in the event loop only."""

    def __init__(
        self, model: str, *, has_interim: bool, has_vad_events: bool, utterance_end_s: float | None, silence_s: float
    ) -> None:
        self._model, self._has_interim, self._has_vad_events = model, has_interim, has_vad_events
        self._utterance_end_s, self._silence_s = utterance_end_s, silence_s
        self._request_id, self._sha256 = secrets.token_hex(16), hashlib.sha256()
        self._created = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._received_s = 0.0
        self._turns: dict[str, LiveTurn] = {}  # that have no final text yet
        self._last_end_s: float | None = None  # of the last words, until an UtteranceEnd tells it
        self._speakers: dict[str, int] = {}
        self.is_finalizing = False  # the client asked for the text of what was said so far

    def hear(self, duration_s: float, audio: bytes) -> Iterator[Fields]:
        """Audio arrived: silence may have become long enough for an UtteranceEnd."""
        self._received_s += duration_s
        self._sha256.update(audio)
        if self._utterance_end_s is None or self._last_end_s is None or self._turns:
            return
        if self._received_s >= self._last_end_s + self._utterance_end_s:
            yield {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": round(self._last_end_s, 3)}
            self._last_end_s = None

    def translate(self, event: Fields) -> Iterator[Fields]:
        kind, item_id = event["type"], event.get("item_id", "")
        if kind == f"{BUFFER}.speech_started":
            self._turns[item_id] = LiveTurn(event["audio_start_ms"] / 1000)
            if self._has_vad_events:
                yield {"type": "SpeechStarted", "channel": [0, 1], "timestamp": event["audio_start_ms"] / 1000}
        elif kind == f"{BUFFER}.speech_stopped":
            self._turns[item_id].end_s = event["audio_end_ms"] / 1000 - self._silence_s
        elif kind == f"{TRANSCRIPTION}.delta":
            turn = self._turn(item_id)
            turn.text += event["delta"]
            if self._has_interim and turn.end_s is None:
                yield self._result(turn, is_final=False)
        elif kind == f"{TRANSCRIPTION}.completed":
            yield self._complete(item_id, event["transcript"], event.get("speaker"))
        elif kind == f"{TRANSCRIPTION}.failed":
            self._turns.pop(item_id, None)
            yield _error(event["error"])
        elif kind == "error":
            yield from self._refuse(event["error"])

    def metadata(self) -> Fields:
        """The last message."""
        return {
            "type": "Metadata",
            "transaction_key": "deprecated",
            "request_id": self._request_id,
            "sha256": self._sha256.hexdigest(),
            "created": self._created,
            "duration": round(self._received_s, 3),
            "channels": 1,
            "models": [self._model],
            "model_info": {self._model: self._model_info},
        }

    @property
    def _model_info(self) -> Fields:
        return {"name": self._model, "version": __version__, "arch": "whisper"}

    def _turn(self, item_id: str) -> LiveTurn:
        return self._turns.setdefault(item_id, LiveTurn(self._received_s))

    def _complete(self, item_id: str, text: str, speaker: str | None) -> Fields:
        turn = self._turn(item_id)
        del self._turns[item_id]
        is_finalized, self.is_finalizing = self.is_finalizing and turn.end_s is None, False
        turn.text, turn.end_s = text, self._received_s if turn.end_s is None else turn.end_s
        if text:
            self._last_end_s = turn.end_s
        number = None if speaker is None else self._speakers.setdefault(speaker, len(self._speakers))
        return self._result(turn, is_final=True, is_finalized=is_finalized, speaker=number)

    def _result(
        self, turn: LiveTurn, *, is_final: bool, is_finalized: bool = False, speaker: int | None = None
    ) -> Fields:
        duration_s = max(0.0, (self._received_s if turn.end_s is None else turn.end_s) - turn.start_s)
        text = turn.text.strip()
        words = [word_fields(word, {}) for word in _estimated_words(text, turn.start_s, duration_s)]
        for word in words if speaker is not None else ():
            word["speaker"] = speaker
        alternative = {"transcript": text, "confidence": CONFIDENCE if text else 0.0, "words": words}
        return {
            "type": "Results",
            "channel_index": [0, 1],
            "duration": round(duration_s, 3),
            "start": round(turn.start_s, 3),
            "is_final": is_final,
            "speech_final": is_final and not is_finalized,
            "from_finalize": is_finalized,
            "channel": {"alternatives": [alternative]},
            "metadata": {
                "request_id": self._request_id,
                "model_info": self._model_info,
                "model_uuid": self._model,
            },
        }

    def _refuse(self, error: Fields) -> Iterator[Fields]:
        if error["code"] == NOTHING_TO_COMMIT and self.is_finalizing:
            self.is_finalizing = False
            yield self._result(LiveTurn(self._received_s, self._received_s), is_final=True, is_finalized=True)
        elif error["code"] not in HIDDEN_ERRORS:
            yield _error(error)


def _error(error: Fields) -> Fields:
    return {"type": "Error", "variant": error["code"] or "error", "description": error["message"]}


def _estimated_words(text: str, start_s: float, duration_s: float) -> Iterator[Word]:
    """Each word takes a share of the time by its letters."""
    texts = text.split()
    per_letter_s = duration_s / max(1, sum(map(len, texts)))
    for each in texts:
        end_s = start_s + len(each) * per_letter_s
        yield Word(text=each, start=round(start_s, 3), end=round(end_s, 3), probability=CONFIDENCE)
        start_s = end_s
