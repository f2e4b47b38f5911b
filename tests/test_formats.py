"""The formats against openai-whisper's own writers, byte for byte, and against real parsers of subtitles."""

from __future__ import annotations

import dataclasses
import io
import json
from datetime import timedelta
from typing import Any

import pytest
import srt
import webvtt
import whisper.utils
from hypothesis import given, settings
from hypothesis import strategies as st

from choral import formats
from choral.errors import UsageError
from choral.options import SubtitleOptions
from choral.transcript import Segment, Transcript, Word

WRITERS = {
    "text": whisper.utils.WriteTXT,
    "srt": whisper.utils.WriteSRT,
    "vtt": whisper.utils.WriteVTT,
    "tsv": whisper.utils.WriteTSV,
}


def word(text: str, start: float, end: float) -> Word:
    return Word(text, start, end, 0.9)


def segment(text: str, start: float, end: float, words: tuple[Word, ...] | None = None, *, id: int = 0) -> Segment:
    return Segment(id, 0, start, end, text, (50364, 1, 50414), 0.0, -0.25, 1.5, 0.01, words)


def transcript(*segments: Segment, **given: Any) -> Transcript:
    text = "".join(part.text for part in segments)
    fields: dict[str, Any] = {"language": "en", "language_probability": None, "duration": 60.0, **given}
    return Transcript(text=text, segments=segments, **fields)


def reference_dict(result: Transcript) -> dict[str, Any]:
    """A transcript as openai-whisper's writers take it."""
    segments = []
    for part in result.segments:
        fields: dict[str, Any] = {"start": part.start, "end": part.end, "text": part.text}
        if part.words is not None:
            fields["words"] = [
                {"word": each.text, "start": each.start, "end": each.end, "probability": each.probability}
                for each in part.words
            ]
        segments.append(fields)
    return {"text": result.text, "segments": segments, "language": result.language}


def reference(result: Transcript, name: str, subtitles: SubtitleOptions) -> str:
    file = io.StringIO(newline="")
    options = dataclasses.asdict(subtitles) if name in ("srt", "vtt") else {}
    WRITERS[name]("").write_result(reference_dict(result), file, options)
    return file.getvalue()


TEXTS = st.one_of(
    st.sampled_from(["", " ", " a", " Hello", " world.", "-->", " a --> b", "\tx\ty", "漢字", " né", " x\ny", "\n"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
GAPS = st.one_of(st.sampled_from([0.0, 0.02, 2.99, 3.0, 3.01, 60.0, 3599.9996, 3600.0, 40_000.0]), st.floats(0, 10))


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    has_words = draw(st.booleans())
    now = draw(GAPS)
    segments = []
    for index in range(draw(st.integers(0, 5))):
        words = []
        start = now
        for _ in range(draw(st.integers(0, 8))):
            word_start = now + draw(GAPS)
            now = word_start + draw(st.floats(0, 2))
            words.append(word(draw(TEXTS), word_start, now))
        text = "".join(each.text for each in words) or draw(TEXTS)
        now += draw(GAPS)
        segments.append(segment(text, start, now, tuple(words) if has_words else None, id=index))
    return transcript(*segments)


@st.composite
def layouts(draw: st.DrawFn) -> SubtitleOptions:
    highlight = draw(st.booleans())
    if draw(st.booleans()):
        return SubtitleOptions(highlight, max_words_per_line=draw(st.none() | st.integers(1, 6)))
    width = draw(st.integers(1, 60))
    return SubtitleOptions(highlight, max_line_width=width, max_line_count=draw(st.none() | st.integers(1, 4)))


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=400, deadline=None)
@given(result=transcripts(), subtitles=layouts())
def test_output_equals_openai_whisper_byte_for_byte(name: str, result: Transcript, subtitles: SubtitleOptions) -> None:
    has_words = any(part.words is not None for part in result.segments)
    layout = subtitles if has_words else SubtitleOptions()
    assert formats.render(result, name, layout) == reference(result, name, layout)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("has_words", [True, False])
def test_very_long_segments_break_as_in_openai_whisper(name: str, has_words: bool) -> None:
    words = tuple(word(f" w{index}", index * 0.3, index * 0.3 + 0.2) for index in range(2500))
    text = "".join(each.text for each in words)
    result = transcript(segment(text, 0, 750, words if has_words else None))
    assert formats.render(result, name) == reference(result, name, SubtitleOptions())


HELLO = transcript(
    segment(" Hello there,", 0.0, 1.5, (word(" Hello", 0.0, 0.5), word(" there,", 0.7, 1.5))),
    segment(" world.", 3661.25, 3662.0, (word(" world.", 3661.25, 3662.0),), id=1),
)


def test_known_transcript_in_every_format() -> None:
    assert formats.text(HELLO) == "Hello there,\nworld.\n"
    assert formats.tsv(HELLO) == "start\tend\ttext\n0\t1500\tHello there,\n3661250\t3662000\tworld.\n"
    assert formats.srt(HELLO) == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello there,\n\n2\n01:01:01,250 --> 01:01:02,000\nworld.\n\n"
    )
    assert formats.vtt(HELLO) == (
        "WEBVTT\n\n00:00.000 --> 00:01.500\nHello there,\n\n01:01:01.250 --> 01:01:02.000\nworld.\n\n"
    )


def test_highlight_words_underlines_one_word_per_cue() -> None:
    parsed = list(srt.parse(formats.srt(HELLO, SubtitleOptions(highlight_words=True))))
    assert [cue.content for cue in parsed] == [
        "<u>Hello</u> there,",
        "Hello there,",
        "Hello <u>there,</u>",
        "<u>world.</u>",
    ]
    assert parsed[1].start == timedelta(seconds=0.5)
    assert parsed[1].end == timedelta(seconds=0.7)


WELL_FORMED = st.lists(st.sampled_from([" one", " two", " trois,", " 四", " five."]), min_size=1, max_size=30)


@settings(max_examples=100, deadline=None)
@given(spellings=WELL_FORMED, subtitles=layouts(), start=st.floats(0, 10_000))
def test_subtitle_parsers_read_the_same_text_and_times(
    spellings: list[str], subtitles: SubtitleOptions, start: float
) -> None:
    words = tuple(word(text, start + index, start + index + 1) for index, text in enumerate(spellings))
    result = transcript(segment("".join(spellings), start, start + len(spellings), words))
    of_srt = list(srt.parse(formats.srt(result, subtitles)))
    of_vtt = webvtt.from_string(formats.vtt(result, subtitles)).captions
    assert [cue.content for cue in of_srt] == [cue.raw_text for cue in of_vtt]
    assert of_srt[0].start.total_seconds() == pytest.approx(start, abs=0.001)
    assert of_vtt[-1].end_in_seconds == int(of_srt[-1].end.total_seconds())
    if not subtitles.highlight_words:
        assert "".join(" ".join(cue.content.split()) for cue in of_srt).replace(" ", "") == "".join(
            text.strip() for text in spellings
        )


def test_empty_transcript_is_valid_in_every_format() -> None:
    nothing = transcript(duration=3.0)
    assert formats.text(nothing) == ""
    assert formats.srt(nothing) == ""
    assert formats.vtt(nothing) == "WEBVTT\n\n"
    assert formats.tsv(nothing) == "start\tend\ttext\n"
    assert webvtt.from_string(formats.vtt(nothing)).captions == []
    assert json.loads(formats.verbose_json(nothing))["segments"] == []


def test_json_contains_only_the_text() -> None:
    assert formats.json(transcript(segment(" né 漢字", 0, 1))) == '{"text": " né 漢字"}\n'


def test_verbose_json_has_every_field() -> None:
    result = dataclasses.replace(HELLO, language_probability=0.75, warnings=("the file ends early",))
    fields = json.loads(formats.verbose_json(result))
    assert {key: fields[key] for key in fields if key not in ("segments", "words")} == {
        "task": "transcribe",
        "language": "english",
        "language_probability": 0.75,
        "duration": 60.0,
        "text": " Hello there, world.",
        "warnings": ["the file ends early"],
    }
    assert fields["segments"][1] == {
        "id": 1,
        "seek": 0,
        "start": 3661.25,
        "end": 3662.0,
        "text": " world.",
        "tokens": [50364, 1, 50414],
        "temperature": 0.0,
        "avg_logprob": -0.25,
        "compression_ratio": 1.5,
        "no_speech_prob": 0.01,
        "words": [{"word": " world.", "start": 3661.25, "end": 3662.0, "probability": 0.9}],
    }
    assert [each["word"] for each in fields["words"]] == ["Hello", "there,", "world."]


def test_verbose_json_without_words_has_none() -> None:
    fields = json.loads(formats.verbose_json(transcript(segment(" Hi", 0, 1))))
    assert "words" not in fields
    assert "words" not in fields["segments"][0]
    assert "warnings" not in fields


def test_nan_and_infinity_become_null_in_json() -> None:
    odd = dataclasses.replace(segment(" Hi", 0, 1), avg_logprob=float("nan"), compression_ratio=float("inf"))
    parsed = json.loads(formats.verbose_json(transcript(odd)), parse_constant=pytest.fail)
    assert parsed["segments"][0]["avg_logprob"] is None
    assert parsed["segments"][0]["compression_ratio"] is None


@pytest.mark.parametrize("name", ["srt", "vtt"])
def test_subtitle_layout_without_words_is_refused(name: str) -> None:
    layout = SubtitleOptions(max_line_width=20)
    with pytest.raises(UsageError, match="word_timestamps"):
        formats.render(transcript(segment(" Hi", 0, 1)), name, layout)
    assert "-->" not in formats.render(transcript(), name, layout)
    assert "Hello there," in formats.render(HELLO, name, layout)


def test_unknown_format_error_lists_the_formats() -> None:
    with pytest.raises(UsageError, match="'docx'; it must be one of text, json, verbose_json, srt, vtt, tsv"):
        formats.render(HELLO, "docx")


def test_all_formats_have_different_extensions() -> None:
    endings = [formats.FORMATS[name].extension for name in formats.ALL]
    assert sorted(endings) == [".json", ".rttm", ".srt", ".tsv", ".txt", ".vtt"]
    assert "verbose_json" in formats.ALL
