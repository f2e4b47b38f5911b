"""`choral demo`: a first try on real speech, or on your own files, with the times of what is said."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choral.cli.arguments import Parser
from choral.cli.bars import download_bar
from choral.cli.crew import Crew
from choral.cli.failures import Failures
from choral.cli.inputs import Input, expand, require_stdin
from choral.cli.loading import add_machine_flags, load_model
from choral.cli.outputs import write_stdout
from choral.cli.progress import Display, message, open_progress
from choral.cli.work import Request, Work
from choral.types import Segment, SubtitleOptions, TranscribeOptions, Transcript

DESCRIPTION = """\
A first try. Transcribes AUDIO, or a famous sentence that is fetched once, and shows when each part of it
is said. The model is fetched once, too.
"""


def add_command(commands: Any) -> None:
    parser: Parser = commands.add_parser(
        "demo", help="a first try on real speech", usage="choral demo [AUDIO…] [options]", description=DESCRIPTION
    )
    parser.add_argument("audio", nargs="*", metavar="AUDIO", help=argparse.SUPPRESS)
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    inputs = expand(arguments.audio or [str(sample_path())])
    failures = Failures.telling(inputs.failures)
    if not inputs.found:
        return failures.exit_code
    require_stdin(inputs)
    with closing(load_model(arguments)) as model, open_progress(len(inputs.found), is_quiet=False) as display:
        with display.paused():
            message(f"model {model.name} on {model.device}, {model.compute_type}")
        request = Request(TranscribeOptions(), SubtitleOptions(), ("text",), is_quiet=False)
        # One after another: lines of several files in between each other would tell nobody anything.
        return Work(Crew(model, request.options, 1), TimedLines(display), display, request, failures).run(inputs.found)


def sample_path() -> Path:
    from choral.remote.speech import jfk

    with download_bar("fetching real speech") as on_download:
        return jfk(on_progress=on_download).path


@dataclass(frozen=True)
class TimedLines:
    """A sink that shows each segment with its times as soon as it is final."""

    display: Display

    def take(self, segment: Segment) -> None:
        with self.display.paused():
            write_stdout(f"{segment.start:7.2f} → {segment.end:6.2f} s  {segment.text.strip()}\n")

    def finish(self, item: Input, transcript: Transcript) -> list[Path]:
        return []

    def keep(self, item: Input, transcript: Transcript) -> list[Path]:
        return []
