"""Output formats: text, json, verbose_json, srt, vtt and tsv, each a pure function from a transcript to a whole file.

text, srt, vtt and tsv equal the files of openai-whisper's writers byte for byte, including the layout of words into
lines and subtitles. verbose_json has the fields of OpenAI's API and those of openai-whisper's json file. Both json
formats keep non-ASCII text unescaped and write NaN and infinity as null.
"""

from __future__ import annotations

import dataclasses
import html
import json as json_library
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from choral.errors import UsageError
from choral.types import Segment, SubtitleOptions, Transcript, Word

UNLIMITED = 1000  # openai-whisper's value for "no limit"; a line or a subtitle still ends here
LONG_PAUSE_S = 3.0  # a pause between words that starts a new subtitle when subtitles may span segments
DEFAULT_SUBTITLES = SubtitleOptions()


def text(transcript: Transcript) -> str:
    """One line per segment."""
    return "".join(text_line(segment) for segment in transcript.segments)


def text_line(segment: Segment) -> str:
    return f"{_label(_voice_of(segment))}{segment.text.strip()}\n"


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
    cues = enumerate(_cues(transcript, subtitles, _srt_time), start=1)
    return "".join(f"{number}\n{cue.start} --> {cue.end}\n{_label(cue.voice)}{cue.text}\n\n" for number, cue in cues)


def vtt(transcript: Transcript, subtitles: SubtitleOptions = DEFAULT_SUBTITLES) -> str:
    cues = _cues(transcript, subtitles, _vtt_time)
    return "WEBVTT\n\n" + "".join(f"{cue.start} --> {cue.end}\n{_vtt_voice(cue.voice)}{cue.text}\n\n" for cue in cues)


def tsv(transcript: Transcript) -> str:
    """Start and end in whole milliseconds, and the text."""
    rows = ["start\tend\ttext\n"]
    for segment in transcript.segments:
        line = _label(_voice_of(segment)) + segment.text.strip().replace("\t", " ")
        rows.append(f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t{line}\n")
    return "".join(rows)


@dataclass(frozen=True)
class Format:
    write: Callable[..., str]
    extension: str
    is_subtitles: bool = False

    def render(self, transcript: Transcript, subtitles: SubtitleOptions) -> str:
        return self.write(transcript, subtitles) if self.is_subtitles else self.write(transcript)


FORMATS = {
    "text": Format(text, ".txt"),
    "json": Format(json, ".json"),
    "verbose_json": Format(verbose_json, ".json"),
    "srt": Format(srt, ".srt", is_subtitles=True),
    "vtt": Format(vtt, ".vtt", is_subtitles=True),
    "tsv": Format(tsv, ".tsv"),
}
ALL = tuple(name for name in FORMATS if name != "json")  # verbose_json contains everything in json


def render(transcript: Transcript, name: str, subtitles: SubtitleOptions = DEFAULT_SUBTITLES) -> str:
    """Render the transcript in the named format."""
    if name not in FORMATS:
        raise UsageError(f"format is {name!r}; it must be one of {', '.join(FORMATS)}")
    return FORMATS[name].render(transcript, subtitles)


def _voice_of(part: Segment | Word) -> str | None:
    """Who speaks: the speaker or the channel, where one is known."""
    return part.speaker or (None if part.channel is None else f"Channel {part.channel}")


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


# --- subtitles ---


@dataclass(frozen=True)
class _Cue:
    start: str
    end: str
    text: str
    voice: str | None


FormatTime = Callable[[float], str]


def _clock(seconds: float) -> tuple[int, str, int]:
    """Split a time, rounded to milliseconds, into hours, "MM:SS" and milliseconds."""
    assert seconds >= 0, f"negative timestamp: {seconds}"
    whole_seconds, milliseconds = divmod(round(seconds * 1000.0), 1000)
    whole_minutes, second = divmod(whole_seconds, 60)
    hours, minute = divmod(whole_minutes, 60)
    return hours, f"{minute:02d}:{second:02d}", milliseconds


def _srt_time(seconds: float) -> str:
    hours, minutes_and_seconds, milliseconds = _clock(seconds)
    return f"{hours:02d}:{minutes_and_seconds},{milliseconds:03d}"


def _vtt_time(seconds: float) -> str:
    hours, minutes_and_seconds, milliseconds = _clock(seconds)
    hours_if_any = f"{hours:02d}:" if hours else ""
    return f"{hours_if_any}{minutes_and_seconds}.{milliseconds:03d}"


def _cues(transcript: Transcript, subtitles: SubtitleOptions, format_time: FormatTime) -> Iterator[_Cue]:
    segments = transcript.segments
    if segments and subtitles.needs_words and all(segment.words is None for segment in segments):
        raise UsageError("this subtitle layout needs word timestamps: transcribe with word_timestamps=True")
    if not segments or segments[0].words is None:
        for segment in segments:
            line = segment.text.strip().replace("-->", "->")
            yield _Cue(format_time(segment.start), format_time(segment.end), line, _voice_of(segment))
        return
    for words in _group_words(segments, subtitles):
        if subtitles.highlight_words:
            yield from _highlighted(words, format_time)
        else:
            yield _Cue(format_time(words[0].start), format_time(words[-1].end), _joined(words), _voice_of(words[0]))


def _joined(words: Sequence[Word]) -> str:
    return "".join(word.text for word in words)


def _highlighted(words: Sequence[Word], format_time: FormatTime) -> Iterator[_Cue]:
    """One cue per word with that word underlined, and a plain cue for each pause between words."""
    shown_until, voice = format_time(words[0].start), _voice_of(words[0])
    for index, word in enumerate(words):
        start, end = format_time(word.start), format_time(word.end)
        if shown_until != start:
            yield _Cue(shown_until, start, _joined(words), voice)
        underlined = _joined(words[:index]) + _underlined(word.text) + _joined(words[index + 1 :])
        yield _Cue(start, end, underlined, voice)
        shown_until = end


def _underlined(word: str) -> str:
    return re.sub(r"^(\s*)(.*)$", r"\1<u>\2</u>", word)


def _group_words(segments: Sequence[Segment], subtitles: SubtitleOptions) -> Iterator[list[Word]]:
    """Group words into subtitles; a word that starts a new line gets a line break before it."""
    words_per_chunk = subtitles.max_words_per_line or UNLIMITED
    first_word = next((word for segment in segments for word in segment.words or ()), None)
    layout = _Layout(subtitles, last_start_s=first_word.start if first_word else 0.0)
    for segment in segments:
        for index, word in enumerate(segment.words or ()):
            finished = layout.add(word, starts_chunk=index % words_per_chunk == 0)
            if finished:
                yield finished
    if layout.subtitle:
        yield layout.subtitle


@dataclass
class _Layout:
    """The subtitle being filled. Without `max_line_count` a subtitle never spans two segments, and never voices."""

    options: SubtitleOptions
    last_start_s: float
    subtitle: list[Word] = field(default_factory=list)
    line_width: int = 0
    n_lines: int = 1

    def add(self, word: Word, *, starts_chunk: bool) -> list[Word]:
        """Add a word; return the previous subtitle if this word starts a new one."""
        keeps_segments = self.options.max_line_count is None
        is_other_voice = bool(self.subtitle) and _voice_of(self.subtitle[-1]) != _voice_of(word)
        has_long_pause = (not keeps_segments and word.start - self.last_start_s > LONG_PAUSE_S) or is_other_voice
        starts_subtitle = keeps_segments and starts_chunk and bool(self.subtitle)
        has_room = self.line_width + len(word.text) <= (self.options.max_line_width or UNLIMITED)
        self.last_start_s = word.start
        if self.line_width > 0 and has_room and not has_long_pause and not starts_subtitle:
            self.line_width += len(word.text)
            self.subtitle.append(word)
            return []
        return self._start_line(word, ends_subtitle=starts_subtitle or self._is_full(has_long_pause))

    def _is_full(self, has_long_pause: bool) -> bool:
        max_lines = self.options.max_line_count
        return bool(self.subtitle) and max_lines is not None and (has_long_pause or self.n_lines >= max_lines)

    def _start_line(self, word: Word, *, ends_subtitle: bool) -> list[Word]:
        spelling = word.text.strip()
        finished: list[Word] = []
        if ends_subtitle:
            finished, self.subtitle, self.n_lines = self.subtitle, [], 1
        elif self.line_width > 0:
            self.n_lines += 1
            spelling = "\n" + spelling
        self.line_width = len(spelling.strip())
        self.subtitle.append(dataclasses.replace(word, text=spelling))
        return finished
