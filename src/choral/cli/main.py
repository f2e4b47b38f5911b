"""The command `choral`: finds the command to run, and turns errors into messages and exit codes.

This is the only place that does: errors with a type become one line and their exit code, a closed pipe, Ctrl-C and
SIGTERM end the run quietly, and what nobody foresaw keeps its traceback and asks to be reported.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from choral import __version__
from choral.cli import bench, demo, doctor, jobs, keys, models, serve, submit, transcribe, worker
from choral.cli.arguments import Parser, normalise
from choral.cli.failures import error_lines
from choral.cli.interrupts import interrupt_code, watch_for_termination
from choral.cli.outputs import StdoutClosed, write_stdout
from choral.cli.progress import message
from choral.errors import ChoralError

HIGHEST_STANDARD_STREAM = 2
BROKEN_PIPE = 141  # what a shell shows for a program that a closed pipe ended
DESCRIPTION = "Speech to text with Whisper models: many voices, one pass."
EPILOG = """\
start here:
  choral transcribe talk.mp3                         the text, on your screen
  choral transcribe talk.mp3 --format srt > talk.srt
  choral models list                                 what there is, and what is installed
  choral doctor                                      what would be used here, and what is missing

`choral COMMAND --help` tells more about each.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    sys.excepthook = _ask_to_report
    _fill_closed_streams()
    _use_utf8()
    watch_for_termination()
    try:
        return _run(normalise(sys.argv[1:] if arguments is None else arguments))
    except ChoralError as error:
        message(*error_lines(str(error), error))
        return error.exit_code
    except StdoutClosed:
        # Python flushes standard output once more on its way out, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt as interrupt:
        message("choral: stopped")
        return interrupt_code(interrupt)


def _run(arguments: Sequence[str]) -> int:
    parser = build_parser()
    parsed, unknown = parser.parse_known_args(arguments)
    if not hasattr(parsed, "run"):
        if unknown:
            parser.refuse_unknown(unknown)
        getattr(parsed, "parser", parser).print_help()
        return 0
    _take_rest(parsed, unknown)
    exit_code: int = parsed.run(parsed)
    return exit_code


def build_parser() -> Parser:
    parser = Parser(prog="choral", usage="choral COMMAND …", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    commands = parser.add_subparsers(prog="choral", title="commands", metavar="COMMAND")
    text = commands.add_parser(
        "transcribe",
        help="turn speech into text",
        usage="choral transcribe AUDIO… [options]",
        description=transcribe.DESCRIPTION,
        epilog=transcribe.EPILOG,
    )
    transcribe.add_arguments(text)
    text.set_defaults(run=transcribe.run, parser=text)
    demo.add_command(commands)
    models.add_commands(commands)
    serve.add_command(commands)
    keys.add_commands(commands)
    worker.add_command(commands)
    submit.add_command(commands)
    jobs.add_commands(commands)
    doctor.add_command(commands)
    bench.add_commands(commands)
    return parser


def _take_rest(parsed: argparse.Namespace, unknown: list[str]) -> None:
    """argparse stops taking inputs at the first flag after one; the others are inputs too."""
    is_literal = "--" in unknown
    before = unknown[: unknown.index("--")] if is_literal else unknown
    wrong = [argument for argument in before if argument.startswith("-") and argument != "-"]
    if wrong or (unknown and not hasattr(parsed, "audio")):
        parsed.parser.refuse_unknown(wrong or unknown)
    if unknown:
        parsed.audio += [*before, *unknown[len(before) + 1 :]]


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        write_stdout(f"choral {__version__}\n")
        parser.exit()


def _fill_closed_streams() -> None:
    """Keep the next file that is opened from becoming standard input, output or error where those are closed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= HIGHEST_STANDARD_STREAM:
        pass
    os.close(descriptor)


def _use_utf8() -> None:
    """Results are UTF-8 wherever they go; a terminal that cannot show a letter shows a question mark."""
    if sys.stdout is None:
        return
    assert isinstance(sys.stdout, io.TextIOWrapper)
    if sys.stdout.isatty():
        sys.stdout.reconfigure(errors="replace")
    else:
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


def _ask_to_report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, trace)
    message("choral: this is a mistake in Choral, not in what you did. Please report it with the lines above.")


if __name__ == "__main__":
    sys.exit(main())
