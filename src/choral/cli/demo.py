"""`choral demo`: transcribes a sample of real speech, or your own files, and shows the times of each segment."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from choral.cli.arguments import Parser
from choral.cli.batch_run import BatchOptions, BatchRun
from choral.cli.console import message, write_stdout
from choral.cli.executors import RuntimeExecutor
from choral.cli.failures import Failures
from choral.cli.inputs import Input, expand, require_stdin
from choral.cli.progress import Display, download_bar, open_progress
from choral.cli.shared_flags import add_machine_flags, load_model
from choral.options import SubtitleOptions, TranscribeOptions
from choral.transcript import Segment, Transcript

USAGE = "choral demo [AUDIO…] [options]"
DESCRIPTION = """\
Transcribe AUDIO, or a sample of real speech, and show the times of each segment. The sample and the
model are downloaded on first use.
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("audio", nargs="*", metavar="AUDIO", help=argparse.SUPPRESS)
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    inputs = expand(arguments.audio or [str(sample_path())])
    failures = Failures()
    failures.report(*inputs.failures)
    if not inputs.found:
        return failures.exit_code
    require_stdin(inputs)
    with closing(load_model(arguments)) as model, open_progress(len(inputs.found), is_quiet=False) as display:
        with display.paused():
            message(f"model {model.name} on {model.device}, {model.compute_type}")
        options = BatchOptions(TranscribeOptions(), SubtitleOptions(), ("text",), is_quiet=False)
        runtime = model.runtime(n_inputs=1)
        executor = RuntimeExecutor(runtime, options.options, max_parallel=1)  # so that lines of two files do not mix
        return BatchRun(executor, TimedLines(display), display, options, failures).run(inputs.found)


def sample_path() -> Path:
    from choral.remote.speech_samples import jfk

    with download_bar("fetching real speech") as on_download:
        return jfk(on_progress=on_download).path


@dataclass(frozen=True)
class TimedLines:
    """A sink that prints each segment with its times as soon as it is final."""

    display: Display

    def add_segment(self, segment: Segment) -> None:
        with self.display.paused():
            write_stdout(f"{segment.start:7.2f} → {segment.end:6.2f} s  {segment.text.strip()}\n")

    def finish(self, item: Input, transcript: Transcript) -> list[Path]:
        return []

    def save_partial(self, item: Input, transcript: Transcript) -> list[Path]:
        return []
