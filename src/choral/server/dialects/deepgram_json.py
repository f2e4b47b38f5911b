"""A transcript in the shape of Deepgram's responses: channels with words, utterances, metadata."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from choral import __version__
from choral.server.responses import joined_text
from choral.transcript import Segment, Transcript, Word

PUNCTUATION = '.,;:!?…"“”()[]¿¡。，、！？'


def listen_fields(
    transcript: Transcript, model: str, sha256: str, detected_language: str | None, *, has_utterances: bool
) -> dict[str, Any]:
    """The whole response. A model has no UUID here: its name stands for it."""
    n_channels = max((segment.channel or 1 for segment in transcript.segments), default=1)
    speakers = {speaker.name: number for number, speaker in enumerate(transcript.speakers)}
    channels = [
        _channel_fields([s for s in transcript.segments if (s.channel or 1) == number], speakers, detected_language)
        for number in range(1, n_channels + 1)
    ]
    results: dict[str, Any] = {"channels": channels}
    if has_utterances:
        results["utterances"] = [_utterance_fields(segment, speakers) for segment in transcript.segments]
    metadata = {
        "transaction_key": "deprecated",
        "request_id": secrets.token_hex(16),
        "sha256": sha256,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "duration": transcript.duration,
        "channels": n_channels,
        "models": [model],
        "model_info": {model: {"name": model, "version": __version__, "arch": "whisper"}},
    }
    return {"metadata": metadata, "results": results}


def _channel_fields(
    segments: Sequence[Segment], speakers: dict[str, int], detected_language: str | None
) -> dict[str, Any]:
    words = [word for segment in segments for word in segment.words or ()]
    alternative = {
        "transcript": joined_text(segments),
        "confidence": _confidence(words),
        "words": [word_fields(word, speakers) for word in words],
    }
    fields: dict[str, Any] = {"alternatives": [alternative]}
    return fields | ({} if detected_language is None else {"detected_language": detected_language})


def _utterance_fields(segment: Segment, speakers: dict[str, int]) -> dict[str, Any]:
    words = segment.words or ()
    fields: dict[str, Any] = {
        "start": segment.start,
        "end": segment.end,
        "confidence": _confidence(words),
        "channel": (segment.channel or 1) - 1,
        "transcript": segment.text.strip(),
        "words": [word_fields(word, speakers) for word in words],
        "id": secrets.token_hex(16),
    }
    return fields | ({"speaker": speakers[segment.speaker]} if segment.speaker in speakers else {})


def word_fields(word: Word, speakers: dict[str, int]) -> dict[str, Any]:
    text = word.text.strip()
    fields: dict[str, Any] = {
        "word": text.strip(PUNCTUATION).lower() or text,
        "start": word.start,
        "end": word.end,
        "confidence": word.probability,
        "punctuated_word": text,
    }
    return fields | ({"speaker": speakers[word.speaker]} if word.speaker in speakers else {})


def _confidence(words: Iterable[Word]) -> float:
    probabilities = [word.probability for word in words]
    return sum(probabilities) / len(probabilities) if probabilities else 0.0
