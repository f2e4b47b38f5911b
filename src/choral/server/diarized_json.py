"""OpenAI's `diarized_json`: segments with speakers, whole or as events of a stream.

Speakers are A, B, … in the order in which they first speak, as in OpenAI's API; those whose voice is known, or
who were named, have their names.
"""

from __future__ import annotations

from collections.abc import Collection
from string import ascii_uppercase
from typing import Any

from choral.transcript import Segment, Transcript

UNKNOWN = "unknown"  # of text without any turn of a speaker


class SpeakerLabels:
    """The labels of one transcript; `known` are names that were given."""

    def __init__(self, known: Collection[str]) -> None:
        self._labels = {name: name for name in known}
        self._n_unnamed = 0

    def label(self, speaker: str | None) -> str:
        if speaker is None:
            return UNKNOWN
        while speaker not in self._labels:
            letters = _letters(self._n_unnamed)
            self._n_unnamed += 1
            if letters not in self._labels.values():
                self._labels[speaker] = letters
        return self._labels[speaker]

    def segment_fields(self, segment: Segment) -> dict[str, Any]:
        return {
            "type": "transcript.text.segment",
            "id": f"seg_{segment.id + 1:03}",
            "start": segment.start,
            "end": segment.end,
            "text": segment.text.strip(),
            "speaker": self.label(segment.speaker),
        }


def diarized_fields(transcript: Transcript, text: str, known: Collection[str]) -> dict[str, Any]:
    labels = SpeakerLabels(known)
    return {
        "task": transcript.task,
        "duration": transcript.duration,
        "text": text,
        "segments": [labels.segment_fields(segment) for segment in transcript.segments if segment.text.strip()],
    }


def _letters(number: int) -> str:
    """A, …, Z, AA, AB, …"""
    rest, last = divmod(number, len(ascii_uppercase))
    return (_letters(rest - 1) if rest else "") + ascii_uppercase[last]
