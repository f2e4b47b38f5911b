"""Flags generated from the options classes: every field, every type, both spellings."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest

from choral.cli import transcribe
from choral.cli.arguments import Parser, given_options, normalise
from choral.cli.batch_run import BatchOptions
from choral.cli.main import parse as parse_command
from choral.cli.transcribe import read_batch_options
from choral.errors import UsageError
from choral.options import SubtitleOptions, TranscribeOptions
from choral.speakers.networks import SpeakerNetworks


def parse(*arguments: str) -> BatchOptions:
    return read_batch_options(parse_command(normalise(["transcribe", "a.mp3", *arguments])))


def help_text() -> str:
    return re.sub(r"\s+", " ", Parser(module="choral.cli.transcribe").load().format_help())


def test_every_option_has_a_flag_in_one_group() -> None:
    names = [name for heading in transcribe.FLAGS.values() for name in heading]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(TranscribeOptions))
    assert list(transcribe.SUBTITLE_FLAGS) == [field.name for field in dataclasses.fields(SubtitleOptions)]


@pytest.mark.parametrize("options_class", [TranscribeOptions, SubtitleOptions])
def test_help_has_every_flag(options_class: type) -> None:
    text = help_text()
    for field in dataclasses.fields(options_class):
        assert re.search(rf"--(\[no-\])?{field.name.replace('_', '-')} ", text), field.name
        # Long words with dashes are broken at the end of a line.
        assert field.metadata["help"].replace(" ", "") in text.replace(" ", "")


@pytest.mark.parametrize(
    "shown",
    [
        "prompt each window with the previous text (sequential mode) (default: on)",
        "add the start and end of every word (default: off)",
        "(default: 0,0.2,0.4,0.6,0.8,1)",
        "repetitive and the next temperature is tried (default: 2.4)",
        "a Hugging Face repository (default: one that fits the machine)",
        "several separated by commas (default: text)",
    ],
)
def test_help_has_defaults(shown: str) -> None:
    assert shown in help_text()


def test_default_options() -> None:
    request = parse()
    assert request.options == TranscribeOptions()
    assert request.subtitles == SubtitleOptions()
    assert request.formats == ("text",)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--language", "de"], {"language": "de"}),
        (["--language", "none"], {"language": None}),
        (["--task", "translate"], {"task": "translate"}),
        (["--mode=batched"], {"mode": "batched"}),
        (["--vad"], {"vad": True}),
        (["--no-vad"], {"vad": False}),
        (["--no-condition-on-previous-text"], {"condition_on_previous_text": False}),
        (["--no_condition_on_previous_text"], {"condition_on_previous_text": False}),
        (["--beam_size", "5", "--best-of=3"], {"beam_size": 5, "best_of": 3}),
        (["--temperature", "0"], {"temperature": (0.0,)}),
        (["--temperature", "0,0.5"], {"temperature": (0.0, 0.5)}),
        (["--logprob-threshold", "-0.5"], {"logprob_threshold": -0.5}),
        (["--logprob_threshold=-1e-3"], {"logprob_threshold": -0.001}),
        (["--no-speech-threshold", "None"], {"no_speech_threshold": None}),
        (["--suppress-tokens", "-1,50,51"], {"suppress_tokens": (-1, 50, 51)}),
        (["--suppress-tokens", ""], {"suppress_tokens": ()}),
        (["--clip-timestamps", "0,10.5,20"], {"clip_timestamps": (0.0, 10.5, 20.0)}),
        (["--initial-prompt", "under_score --dash_ed"], {"initial_prompt": "under_score --dash_ed"}),
        (
            ["--max-initial-timestamp", "none", "--max-tokens", "100"],
            {"max_initial_timestamp": None, "max_tokens": 100},
        ),
        (["--languages", "en,French", "--multilingual"], {"languages": ("en", "French"), "multilingual": True}),
        (["--seed", "7", "--patience", "2"], {"seed": 7, "patience": 2.0}),
        (["--loudness", "ebu", "--loudness-target", "-18.5"], {"loudness": "ebu", "loudness_target": -18.5}),
    ],
)
def test_flags_become_options(arguments: list[str], expected: dict[str, object]) -> None:
    assert parse(*arguments).options == TranscribeOptions.of(**expected)


def test_every_flag_takes_a_value_of_its_type(networks: SpeakerNetworks, jfk: Path, tmp_path: Path) -> None:
    shutil.copy(jfk, tmp_path / "Kennedy.wav")
    for field in dataclasses.fields(TranscribeOptions):
        flag = "--" + field.name.replace("_", "-")
        values = {"bool": [], "str": ["x"], "Task": ["translate"], "Mode": ["batched"], "Loudness": ["ebu"]}
        values["Channels"] = ["split"]
        value = values.get(field.type.removesuffix(" | None"), ["1"])
        arguments = [flag, *value]
        if field.name == "replacements":
            arguments = [flag, "a=b"]
        if field.name in ("language", "languages"):
            arguments = [flag, "Welsh"]
        if field.name == "hallucination_silence_threshold":
            arguments.append("--word-timestamps")
        if field.name == "speakers":
            arguments = [flag, "2-5", "--diarize"]
        if field.name == "voices":
            arguments = [flag, str(tmp_path), "--diarize"]
        if field.name == "speaker_names":
            arguments = [flag, "Anna,Ben", "--diarize"]
        if field.name == "loudness_target":
            arguments = [flag, "-18.5", "--loudness", "rms"]
        parsed = parse_command(["transcribe", "a.mp3", *normalise(arguments)])
        assert field.name in given_options(parsed, TranscribeOptions)
        assert isinstance(read_batch_options(parsed).options, TranscribeOptions)


def test_term_lists_are_read_from_files(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("\ufeffHelstone\nThornton, Sherburn\n", encoding="utf-8")
    parsed = parse_command(["transcribe", "a.mp3", "--hotwords", f"@{names}", "--replacements", "coral=Choral"])
    options = read_batch_options(parsed).options
    assert options.hotword_terms == ("Helstone", "Thornton", "Sherburn")
    assert options.replacement_terms == {"coral": "Choral"}
    with pytest.raises(UsageError, match=r"argument --hotwords: cannot read /no/file: .*No such file"):
        parse_command(["transcribe", "a.mp3", "--hotwords", "@/no/file"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--beam-size", "many"], "argument --beam-size: invalid number value: 'many'"),
        (["--temperature", "0,warm"], "argument --temperature: invalid list of numbers value: '0,warm'"),
        (["--speakers", "two"], "argument --speakers: invalid list of numbers value: 'two'"),
        (["--speakers", "5-2", "--diarize"], "the lowest and the highest, for example 2-5"),
        (["--speakers", "2"], "speakers has no effect without diarize"),
        (["--beam-size"], "argument --beam-size: expected one argument"),
        (["--task", "sing"], "argument --task: invalid choice: 'sing'"),
        (["--beam-size", "0"], "beam_size is 0; it must be a whole number from 1 to 64"),
        (
            ["--format", "docx"],
            "format is 'docx'; it must be one of text, json, verbose_json, srt, vtt, tsv, rttm, or all",
        ),
        (["--format", "text,rttm"], "--format rttm has the turns of speakers: give --diarize with it"),
        (["--format", "json,verbose_json"], "both write .json files"),
        (["--highlight-words"], "--highlight-words lays out subtitles: give --format srt or vtt"),
        (["--max-line-width", "40", "--format", "json"], "--max-line-width lays out subtitles"),
        (["--max-line-width", "40", "--format", "srt", "--no-word-timestamps"], "leave out --no-word-timestamps"),
        (["--max-line-count", "2", "--format", "srt"], "max_line_count has no effect without max_line_width"),
        (["--language", "klingon"], "unknown language 'klingon'"),
        (["--hallucination-silence-threshold", "2"], "needs word_timestamps"),
    ],
)
def test_invalid_flags_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(*arguments)
    assert message in str(caught.value)


def test_subtitle_layout_enables_word_timestamps() -> None:
    request = parse("--format", "srt,vtt,text", "--max_line_width", "40", "--max-line-count=2")
    assert request.options.word_timestamps
    assert request.subtitles == SubtitleOptions(max_line_width=40, max_line_count=2)
    assert request.formats == ("srt", "vtt", "text")


def test_all_formats() -> None:
    assert parse("--format", "all").formats == ("text", "verbose_json", "srt", "vtt", "tsv")
    assert parse("--format", "all", "--diarize").formats == ("text", "verbose_json", "srt", "vtt", "tsv", "rttm")


def test_arguments_after_a_double_dash_are_kept() -> None:
    assert normalise(["a", "--b_c", "--", "--d_e", "-1"]) == ["a", "--b-c", "--", "--d_e", "-1"]
