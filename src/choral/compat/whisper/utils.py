"""Times as text, and writers of a result as a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from choral import formats
from choral.compat.faster_whisper.utils import format_timestamp
from choral.errors import UsageError
from choral.options import SubtitleOptions
from choral.transcript import Segment, Transcript, Word

FORMATS = {"txt": "text", "vtt": "vtt", "srt": "srt", "tsv": "tsv", "json": "json"}  # suffixes, and Choral's names

__all__ = ["ResultWriter", "format_timestamp", "get_writer"]


def get_writer(output_format: str, output_dir: str) -> ResultWriter:
    """For one of txt, vtt, srt, tsv and json, or all of them."""
    if output_format != "all" and output_format not in FORMATS:
        raise UsageError(f"output_format is {output_format!r}; it must be all or one of {', '.join(FORMATS)}")
    return ResultWriter(tuple(FORMATS) if output_format == "all" else (output_format,), output_dir)


class ResultWriter:
    """Writes what `transcribe` returned into files named after the audio."""

    def __init__(self, suffixes: tuple[str, ...], output_dir: str) -> None:
        self.suffixes, self.output_dir = suffixes, output_dir

    def __call__(
        self,
        result: Mapping[str, Any],
        audio_path: str | os.PathLike[str],
        options: Mapping[str, Any] | None = None,
        **subtitles: Any,
    ) -> None:
        """The layout of subtitles is given by name or in `options`: `max_line_width`, `highlight_words`, …"""
        layout = SubtitleOptions(**{**(options or {}), **subtitles})
        for suffix in self.suffixes:
            if suffix == "json":
                text = json.dumps(result)
            else:
                text = formats.render(to_transcript(result), FORMATS[suffix], layout)
            (Path(self.output_dir) / f"{Path(audio_path).stem}.{suffix}").write_text(text, encoding="utf-8")


def to_transcript(result: Mapping[str, Any]) -> Transcript:
    segments = tuple(_segment(number, fields) for number, fields in enumerate(result["segments"]))
    end_s = segments[-1].end if segments else 0.0
    return Transcript(result["text"], segments, result.get("language", "en"), None, end_s)


def _segment(number: int, fields: Mapping[str, Any]) -> Segment:
    words = fields.get("words")
    return Segment(
        id=fields.get("id", number),
        seek=fields.get("seek", 0),
        start=fields["start"],
        end=fields["end"],
        text=fields["text"],
        tokens=tuple(fields.get("tokens", ())),
        temperature=fields.get("temperature", 0.0),
        avg_logprob=fields.get("avg_logprob", 0.0),
        compression_ratio=fields.get("compression_ratio", 0.0),
        no_speech_prob=fields.get("no_speech_prob", 0.0),
        words=None if words is None else tuple(_word(word) for word in words),
    )


def _word(fields: Mapping[str, Any]) -> Word:
    return Word(fields["word"], fields["start"], fields["end"], fields.get("probability", 1.0))
