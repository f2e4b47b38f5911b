"""Lay out subtitles as openai-whisper's writers do: words into lines and cues, and the times of each.

A subtitle never has two voices: those of speakers or of channels.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from choral.errors import UsageError
from choral.options import SubtitleOptions
from choral.transcript import Segment, Transcript, Word

UNLIMITED = 1000  # openai-whisper's value for "no limit"; a line or a subtitle still ends here
LONG_PAUSE_S = 3.0  # a pause between words that starts a new subtitle when subtitles may span segments


def voice_of(part: Segment | Word) -> str | None:
    """Who speaks: the speaker or the channel, where one is known."""
    return part.speaker or (None if part.channel is None else f"Channel {part.channel}")


def timed(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Without the words of an aligned text that are not in the audio."""
    if all(word.is_timed for segment in segments for word in segment.words or ()):
        return segments
    words = [tuple(word for word in segment.words or () if word.is_timed) for segment in segments]
    pairs = zip(segments, words, strict=True)
    return [dataclasses.replace(segment, text=_joined(timed), words=timed) for segment, timed in pairs if timed]


@dataclass(frozen=True)
class Cue:
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


def srt_time(seconds: float) -> str:
    hours, minutes_and_seconds, milliseconds = _clock(seconds)
    return f"{hours:02d}:{minutes_and_seconds},{milliseconds:03d}"


def vtt_time(seconds: float) -> str:
    hours, minutes_and_seconds, milliseconds = _clock(seconds)
    hours_if_any = f"{hours:02d}:" if hours else ""
    return f"{hours_if_any}{minutes_and_seconds}.{milliseconds:03d}"


def cues_of(transcript: Transcript, subtitles: SubtitleOptions, format_time: FormatTime) -> Iterator[Cue]:
    segments = timed(transcript.segments)
    if segments and subtitles.needs_words and all(segment.words is None for segment in segments):
        raise UsageError("this subtitle layout needs word timestamps: transcribe with word_timestamps=True")
    if not segments or segments[0].words is None:
        for segment in segments:
            line = segment.text.strip().replace("-->", "->")
            yield Cue(format_time(segment.start), format_time(segment.end), line, voice_of(segment))
        return
    for words in _group_words(segments, subtitles):
        if subtitles.highlight_words:
            yield from _highlighted(words, format_time)
        else:
            yield Cue(format_time(words[0].start), format_time(words[-1].end), _joined(words), voice_of(words[0]))


def _joined(words: Sequence[Word]) -> str:
    return "".join(word.text for word in words)


def _highlighted(words: Sequence[Word], format_time: FormatTime) -> Iterator[Cue]:
    """One cue per word with that word underlined, and a plain cue for each pause between words."""
    shown_until, voice = format_time(words[0].start), voice_of(words[0])
    for index, word in enumerate(words):
        start, end = format_time(word.start), format_time(word.end)
        if shown_until != start:
            yield Cue(shown_until, start, _joined(words), voice)
        underlined = _joined(words[:index]) + _underlined(word.text) + _joined(words[index + 1 :])
        yield Cue(start, end, underlined, voice)
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
        is_other_voice = bool(self.subtitle) and voice_of(self.subtitle[-1]) != voice_of(word)
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
