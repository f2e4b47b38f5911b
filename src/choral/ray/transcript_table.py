"""Transcripts and errors as rows of an Arrow table: the columns of the output."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from choral.errors import ChoralError
from choral.formats import segment_fields
from choral.transcript import Segment, Transcript

_TIMES = [pa.field("start", pa.float64()), pa.field("end", pa.float64())]
_VOICE = [pa.field("speaker", pa.string()), pa.field("channel", pa.int32())]
WORD = pa.struct(
    [
        pa.field("segment", pa.int32()),  # the id of its segment
        pa.field("word", pa.string()),
        *_TIMES,
        pa.field("probability", pa.float64()),
        *_VOICE,
    ]
)
SEGMENT = pa.struct(
    [
        pa.field("id", pa.int32()),
        *_TIMES,
        pa.field("text", pa.string()),
        pa.field("avg_logprob", pa.float64()),
        pa.field("no_speech_prob", pa.float64()),
        pa.field("compression_ratio", pa.float64()),
        pa.field("temperature", pa.float64()),
        pa.field("language", pa.string()),
        *_VOICE,
    ]
)
SPEAKER = pa.struct([pa.field("name", pa.string()), pa.field("total_s", pa.float64())])
TRANSCRIPT_SCHEMA = pa.schema(
    [
        pa.field("text", pa.string()),
        pa.field("language", pa.string()),
        pa.field("language_probability", pa.float64()),
        pa.field("duration_s", pa.float64()),
        pa.field("segments", pa.list_(SEGMENT)),
        pa.field("words", pa.list_(WORD)),  # null: not requested
        pa.field("speakers", pa.list_(SPEAKER)),  # null: not requested
        pa.field("warnings", pa.list_(pa.string())),
        pa.field("content_sha256", pa.string()),  # of the audio file; null: it could not be read
        pa.field("error", pa.string()),  # null: it was transcribed
        pa.field("error_kind", pa.string()),  # the class in `choral.errors`
        pa.field("error_is_retryable", pa.bool_()),
    ]
)


def transcript_row(outcome: Transcript | ChoralError, content_sha256: str | None) -> dict[str, Any]:
    if isinstance(outcome, ChoralError):
        return error_row(outcome, content_sha256)
    has_words = any(segment.words is not None for segment in outcome.segments)
    return {
        "text": outcome.text,
        "language": outcome.language,
        "language_probability": outcome.language_probability,
        "duration_s": outcome.duration,
        "segments": [_segment(segment) for segment in outcome.segments],
        "words": [word for segment in outcome.segments for word in _words(segment)] if has_words else None,
        "speakers": [{"name": each.name, "total_s": each.total_s} for each in outcome.speakers] or None,
        "warnings": list(outcome.warnings),
        "content_sha256": content_sha256,
    }


def error_row(error: ChoralError, content_sha256: str | None = None) -> dict[str, Any]:
    return {
        "content_sha256": content_sha256,
        "error": str(error),
        "error_kind": type(error).__name__,
        "error_is_retryable": error.is_retryable,
    }


def _segment(segment: Segment) -> dict[str, Any]:
    fields = segment_fields(segment)
    return {name: fields.get(name) for name in SEGMENT.names}


def _words(segment: Segment) -> list[dict[str, Any]]:
    return [{**word, "word": word["word"].strip(), "segment": segment.id} for word in segment_fields(segment)["words"]]
