"""Output formats, each a pure function from a transcript to a whole file.

text, srt, vtt and tsv equal the files of openai-whisper's writers byte for byte, including the layout of words into
lines and subtitles. verbose_json has the fields of OpenAI's API and those of openai-whisper's json file. Both json
formats keep non-ASCII text unescaped and write NaN and infinity as null. rttm has the turns of speakers, without text.
"""

from __future__ import annotations

import html
import json as json_library
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from choral.diarization import Diarization
from choral.errors import UsageError
from choral.options import SubtitleOptions
from choral.speakers.rttm import write_rttm
from choral.subtitles import cues_of, srt_time, timed, voice_of, vtt_time
from choral.transcript import Segment, Transcript, Word

DEFAULT_SUBTITLES = SubtitleOptions()
DEFAULT_NAME = "audio"  # of a recording


def text(transcript: Transcript) -> str:
    """One line per segment."""
    return "".join(text_line(segment) for segment in transcript.segments)


def text_line(segment: Segment) -> str:
    return f"{_label(voice_of(segment))}{segment.text.strip()}\n"


def json(transcript: Transcript) -> str:
    return _json_text({"text": transcript.text})


def verbose_json(transcript: Transcript) -> str:
    return _json_text(verbose_fields(transcript))


def verbose_fields(transcript: Transcript) -> dict[str, Any]:
    """The fields of verbose_json."""
    from choral.model.languages import NAMES

    has_words = any(segment.words is not None for segment in transcript.segments)
    fields: dict[str, Any] = {
        "task": transcript.task,
        "language": NAMES.get(transcript.language, transcript.language),
        "language_probability": _finite(transcript.language_probability),
        "duration": _finite(transcript.duration),
        "text": transcript.text,
        "segments": [segment_fields(segment) for segment in transcript.segments],
    }
    if has_words:
        fields["words"] = [_word_fields(word, word.text.strip()) for word in transcript.words]
    if transcript.speakers:
        fields["speakers"] = [{"name": each.name, "total_s": each.total_s} for each in transcript.speakers]
    if transcript.warnings:
        fields["warnings"] = list(transcript.warnings)
    return fields


def srt(transcript: Transcript, subtitles: SubtitleOptions = DEFAULT_SUBTITLES) -> str:
    cues = enumerate(cues_of(transcript, subtitles, srt_time), start=1)
    return "".join(f"{number}\n{cue.start} --> {cue.end}\n{_label(cue.voice)}{cue.text}\n\n" for number, cue in cues)


def vtt(transcript: Transcript, subtitles: SubtitleOptions = DEFAULT_SUBTITLES) -> str:
    cues = cues_of(transcript, subtitles, vtt_time)
    return "WEBVTT\n\n" + "".join(f"{cue.start} --> {cue.end}\n{_vtt_voice(cue.voice)}{cue.text}\n\n" for cue in cues)


def tsv(transcript: Transcript) -> str:
    """Start and end in whole milliseconds, and the text."""
    rows = ["start\tend\ttext\n"]
    for segment in timed(transcript.segments):
        line = _label(voice_of(segment)) + segment.text.strip().replace("\t", " ")
        rows.append(f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t{line}\n")
    return "".join(rows)


def rttm(transcript: Transcript, recording: str = DEFAULT_NAME) -> str:
    """NIST's format for who spoke when, empty without diarize; `recording` is its name in every line."""
    return write_rttm(Diarization(transcript.turns, transcript.speakers, transcript.duration), recording)


@dataclass(frozen=True)
class Format:
    write: Callable[..., str]
    extension: str
    is_subtitles: bool = False
    needs_speakers: bool = False

    def render(self, transcript: Transcript, subtitles: SubtitleOptions, recording: str) -> str:
        if self.needs_speakers:
            return self.write(transcript, recording)
        return self.write(transcript, subtitles) if self.is_subtitles else self.write(transcript)


FORMATS = {
    "text": Format(text, ".txt"),
    "json": Format(json, ".json"),
    "verbose_json": Format(verbose_json, ".json"),
    "srt": Format(srt, ".srt", is_subtitles=True),
    "vtt": Format(vtt, ".vtt", is_subtitles=True),
    "tsv": Format(tsv, ".tsv"),
    "rttm": Format(rttm, ".rttm", needs_speakers=True),
}
ALL = tuple(name for name in FORMATS if name != "json")  # verbose_json contains everything in json


def render(
    transcript: Transcript,
    name: str,
    subtitles: SubtitleOptions = DEFAULT_SUBTITLES,
    recording: str = DEFAULT_NAME,
) -> str:
    """Render the transcript in the named format; `recording` is the name that rttm has in it."""
    if name not in FORMATS:
        raise UsageError(f"format is {name!r}; it must be one of {', '.join(FORMATS)}")
    return FORMATS[name].render(transcript, subtitles, recording)


def _label(voice: str | None) -> str:
    return "" if voice is None else f"{voice}: "


def _vtt_voice(voice: str | None) -> str:
    """WebVTT's own mark of who speaks."""
    return "" if voice is None else f"<v {html.escape(voice, quote=False)}>"


# --- json ---


def _json_text(fields: dict[str, object]) -> str:
    return json_library.dumps(fields, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(number: float | None) -> float | None:
    return number if number is None or math.isfinite(number) else None


def segment_fields(segment: Segment) -> dict[str, Any]:
    """The fields of a segment in verbose_json."""
    fields: dict[str, Any] = {
        "id": segment.id,
        "seek": segment.seek,
        "start": _finite(segment.start),
        "end": _finite(segment.end),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": _finite(segment.temperature),
        "avg_logprob": _finite(segment.avg_logprob),
        "compression_ratio": _finite(segment.compression_ratio),
        "no_speech_prob": _finite(segment.no_speech_prob),
    }
    if segment.token_logprobs is not None:
        fields["token_logprobs"] = [_finite(logprob) for logprob in segment.token_logprobs]
    if segment.channel is not None:
        fields["channel"] = segment.channel
    if segment.language is not None:
        fields["language"] = segment.language
    if segment.speaker is not None:
        fields["speaker"] = segment.speaker
    if segment.words is not None:
        fields["words"] = [_word_fields(word, word.text) for word in segment.words]
    return fields


def _word_fields(word: Word, spelling: str) -> dict[str, object]:
    fields: dict[str, object] = {
        "word": spelling,
        "start": _finite(word.start),
        "end": _finite(word.end),
        "probability": _finite(word.probability),
    }
    if word.channel is not None:
        fields["channel"] = word.channel
    if word.speaker is not None:
        fields["speaker"] = word.speaker
    return fields
