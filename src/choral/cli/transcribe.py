"""`choral transcribe`: files, folders, globs, standard input or URLs to text.

One input goes to standard output, several go to files. A failure of one input is reported and the others continue; a
wrong option, a model that cannot be loaded or a full disk ends the run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from choral.cli.arguments import Parser, add_flags, describe, given_options, read_options
from choral.cli.batch_run import BatchOptions, BatchRun
from choral.cli.console import message, require_stdout
from choral.cli.executors import RuntimeExecutor
from choral.cli.failures import Failures
from choral.cli.inputs import Inputs, expand, require_stdin
from choral.cli.outputs import FileSink, Sink, StdoutSink, make_folder, plan_outputs, read_formats
from choral.cli.progress import Display, open_progress
from choral.cli.shared_flags import add_machine_flags, add_processes_flag, engine_settings, load_model
from choral.engine.engine_plan import optimize_for, plan_engine
from choral.errors import UsageError
from choral.formats import FORMATS
from choral.options import SubtitleOptions, TranscribeOptions

USAGE = "choral transcribe AUDIO… [options]"
DESCRIPTION = """\
Turn speech into text.

AUDIO is a file, a folder (every audio and video file in it, at any depth), a pattern such as
'talks/*.mp3', an http(s) URL, or - for standard input.

One input without --output-dir goes to standard output. Otherwise results are files in --output-dir
(default: the current folder) named after their input: talk.mp3 gives talk.txt. Where that name is
taken by another result or by an input, the extension is kept: talk.mp3.txt.
"""
EPILOG = """\
examples:
  choral transcribe talk.mp3
  choral transcribe interview.mp4 --format srt --word-timestamps --max-line-width 42 > interview.srt
  choral transcribe recordings/ --output-dir texts --format all
  curl -s https://example.org/talk.mp3 | choral transcribe - --language en

exit codes: 0 success, 2 usage, 3 audio, 4 model, 5 disk, 6 engine, 7 missing package, 130 stopped by
Ctrl-C, 141 output pipe closed, 143 stopped by SIGTERM, 1 any other error or several kinds of failure
"""

FLAGS: dict[str, tuple[str, ...]] = {
    "language and task": ("language", "languages", "multilingual", "task"),
    "long audio": (
        "mode",
        "vad",
        "vad_threshold",
        "vad_min_silence",
        "vad_padding",
        "retry_missed_speech",
        "clip_timestamps",
    ),
    "speakers": ("diarize", "speakers", "voices", "speaker_names"),
    "channels and loudness": ("channels", "loudness", "loudness_target"),
    "words": ("timestamps", "word_timestamps", "prepend_punctuations", "append_punctuations", "replacements"),
    "prompts": (
        "initial_prompt",
        "carry_initial_prompt",
        "hotwords",
        "hotword_boost",
        "prefix",
        "condition_on_previous_text",
        "prompt_reset_temperature",
    ),
    "decoding": (
        "temperature",
        "beam_size",
        "best_of",
        "patience",
        "length_penalty",
        "seed",
        "max_tokens",
        "suppress_tokens",
        "suppress_blank",
        "max_initial_timestamp",
        "token_logprobs",
    ),
    "thresholds": (
        "compression_ratio_threshold",
        "logprob_threshold",
        "no_speech_threshold",
        "hallucination_silence_threshold",
    ),
}
VERBOSE_HELP = "say which engine is used and where the work is done, and why"
SUBTITLE_FLAGS = ("highlight_words", "max_line_width", "max_line_count", "max_words_per_line")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("audio", nargs="+", metavar="AUDIO", help=argparse.SUPPRESS)
    add_output_flags(parser.add_argument_group("output"))
    machine = parser.add_argument_group("model and machine")
    add_machine_flags(machine)
    add_processes_flag(machine)
    machine.add_argument("--verbose", action="store_true", help=VERBOSE_HELP)
    add_transcription_flags(parser)
    parser.set_defaults(run=run)


def add_output_flags(output: argparse._ArgumentGroup, *, default: str = "text") -> None:
    formats = describe(f"{'|'.join(FORMATS)}|all, or several separated by commas", default)
    output.add_argument("--format", default=default, metavar="NAME", help=formats)
    output.add_argument("--output-dir", metavar="FOLDER", help="write result files to this folder, created if needed")
    output.add_argument("--quiet", action="store_true", help="only results and errors: no progress, notes or warnings")


def add_transcription_flags(parser: Parser) -> None:
    for heading, names in FLAGS.items():
        add_flags(parser.add_argument_group(heading), TranscribeOptions, names)
    add_flags(parser.add_argument_group("subtitles (switch word timestamps on)"), SubtitleOptions, SUBTITLE_FLAGS)


def run(arguments: argparse.Namespace) -> int:
    options = read_batch_options(arguments)
    inputs, failures = expand(arguments.audio), Failures()
    failures.report(*inputs.failures)
    if not inputs.found:
        return failures.exit_code
    require_stdin(inputs)
    open_sink = choose_sink(arguments.output_dir, inputs, options)
    n_files = len(inputs.found)
    hint = optimize_for(n_files, options.options)
    if arguments.verbose:
        message(f"choral: {plan_engine(replace(engine_settings(arguments), optimize_for=hint))}")
    with (
        closing(load_model(arguments, optimize_for=hint)) as model,
        open_progress(n_files, is_quiet=arguments.quiet) as display,
    ):
        runtime = model.runtime(n_files, arguments.processes)
        if arguments.verbose:
            with display.paused():
                message(f"choral: {runtime.plan}")
        executor = RuntimeExecutor(runtime, options.options, min(n_files, runtime.n_requests))
        return BatchRun(executor, open_sink(display), display, options, failures).run(inputs.found)


def choose_sink(output_dir: str | None, inputs: Inputs, options: BatchOptions) -> Callable[[Display], Sink]:
    """Where results go, checked to be writable before a model is loaded."""
    if not inputs.is_single or output_dir is not None:
        folder = Path(output_dir or ".")
        make_folder(folder)
        plan = plan_outputs(inputs.found, folder, options.formats)
        return lambda display: FileSink(plan, options.formats, options.subtitles)
    if len(options.formats) > 1:
        raise UsageError("several formats of one file cannot all go to standard output: give --output-dir")
    require_stdout()
    return lambda display: StdoutSink(options.formats[0], options.subtitles, display)


def read_batch_options(arguments: argparse.Namespace) -> BatchOptions:
    """The options of this command line; subtitle layout switches word timestamps on."""
    options = given_options(arguments, TranscribeOptions)
    layout = given_options(arguments, SubtitleOptions)
    subtitles = SubtitleOptions(**layout)
    formats = read_formats(arguments.format, has_speakers=options.get("diarize", False))
    if subtitles.needs_words:
        flag = next(name for name in layout if layout[name] != getattr(SubtitleOptions, name)).replace("_", "-")
        if not any(FORMATS[name].is_subtitles for name in formats):
            raise UsageError(f"--{flag} lays out subtitles: give --format srt or vtt with it")
        if not options.setdefault("word_timestamps", True):
            raise UsageError(f"--{flag} needs the times of words: leave out --no-word-timestamps")
    return BatchOptions(read_options(options), subtitles, formats, arguments.quiet)
