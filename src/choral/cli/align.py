"""`choral align`: when each word of a known text is spoken, in audio of any length."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from dataclasses import replace

from choral.cli.arguments import Parser, add_flags, given_options, read_options
from choral.cli.batch_run import BatchRun
from choral.cli.executors import RuntimeExecutor
from choral.cli.failures import Failures
from choral.cli.inputs import STDIN, expand, require_stdin
from choral.cli.progress import open_progress
from choral.cli.shared_flags import add_machine_flags, load_model
from choral.cli.transcribe import SUBTITLE_FLAGS, add_output_flags, choose_sink, read_batch_options
from choral.errors import UsageError
from choral.longform.alignment import MAX_ALIGNED_CHARACTERS, check_text
from choral.options import SubtitleOptions, TranscribeOptions

USAGE = "choral align AUDIO TEXT [options]"
DESCRIPTION = """\
Find when each word of a known text is spoken: subtitles of a film with its script, an audiobook with
its book. AUDIO is a file or an http(s) URL, of any length; TEXT is a file of plain text (UTF-8), or -
for standard input.

The text may lack parts of what is spoken, which are skipped, and have parts that are not spoken, which
get no times: they are left out of subtitles, and are null in verbose_json. Every sentence of the text
is a segment.
"""
EPILOG = """\
examples:
  choral align book.m4b book.txt > book.srt
  choral align film.mkv script.txt --format vtt --max-line-width 42 --output-dir subtitles
  choral align talk.mp3 talk.txt --format verbose_json > talk.json
"""
FLAGS: dict[str, tuple[str, ...]] = {
    "speech": ("language", "vad", "vad_threshold", "vad_min_silence", "vad_padding", "loudness", "loudness_target"),
    "words": ("prepend_punctuations", "append_punctuations"),
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("recording", metavar="AUDIO", help=argparse.SUPPRESS)
    parser.add_argument("text", metavar="TEXT", help=argparse.SUPPRESS)
    add_output_flags(parser.add_argument_group("output"), default="srt")
    add_machine_flags(parser.add_argument_group("model and machine"))
    for heading, names in FLAGS.items():
        add_flags(parser.add_argument_group(heading), TranscribeOptions, names)
    add_flags(parser.add_argument_group("subtitles"), SubtitleOptions, SUBTITLE_FLAGS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    options = replace(read_batch_options(arguments), options=read_options(given_options(arguments, TranscribeOptions)))
    inputs, failures = expand([arguments.recording]), Failures()
    failures.report(*inputs.failures)
    if not inputs.found:
        return failures.exit_code
    if not inputs.is_single:
        raise UsageError(f"{arguments.recording} is a folder or pattern: give one recording, and its text")
    text = read_text(arguments.text, is_stdin_taken=inputs.found[0].source == STDIN)
    require_stdin(inputs)
    open_sink = choose_sink(arguments.output_dir, inputs, options)
    with (
        closing(load_model(arguments, optimize_for="throughput")) as model,
        open_progress(1, is_quiet=arguments.quiet) as display,
    ):
        executor = RuntimeExecutor(model.runtime(n_inputs=1), options.options, max_parallel=1, text=text)
        return BatchRun(executor, open_sink(display), display, options, failures).run(inputs.found)


def read_text(path: str, *, is_stdin_taken: bool) -> str:
    """The known text, checked before a model is loaded."""
    if path == STDIN and is_stdin_taken:
        raise UsageError("AUDIO and TEXT cannot both be standard input: give a file for one of them")
    try:
        if path == STDIN:
            data = sys.stdin.buffer.read(4 * MAX_ALIGNED_CHARACTERS + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(4 * MAX_ALIGNED_CHARACTERS + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text in UTF-8: convert it to plain text") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"the text {path} cannot be read ({reason}): check the path") from error
    check_text(text)
    return text
