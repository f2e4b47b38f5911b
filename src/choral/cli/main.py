"""The entry point of `choral`: runs one command, and turns errors into messages and exit codes.

Only the module of the command that runs is imported. A `ChoralError` becomes one line and its exit code; a closed
pipe, Ctrl-C and SIGTERM end the command quietly; any other exception keeps its traceback and asks for a report.
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
from choral.cli.arguments import Parser, add_command_modules, normalise
from choral.cli.console import StdoutClosed, message, write_stdout
from choral.cli.failures import error_lines
from choral.cli.signals import interrupt_code, raise_on_sigterm
from choral.errors import ChoralError

COMMANDS = {  # the command, which is also the name of its module, and its help
    "transcribe": "turn speech into text",
    "corpus": "transcribe a corpus on a Ray cluster",
    "align": "find when each word of a known text is spoken",
    "demo": "transcribe a sample of real speech",
    "models": "list, fetch, check and remove models",
    "serve": "serve a model over HTTP, with OpenAI's API",
    "keys": "manage the API keys of a server",
    "worker": "transcribe jobs from a queue in Redis",
    "submit": "send audio to the queue",
    "jobs": "list, inspect, cancel and retry jobs in the queue",
    "doctor": "check what Choral would use here, and what is missing",
    "bench": "measure speed and accuracy",
}
BROKEN_PIPE = 128 + 13  # what a shell shows for a program that SIGPIPE ended
DESCRIPTION = "Speech to text with Whisper models: many voices, one pass."
EPILOG = """\
start here:
  choral transcribe talk.mp3                         print the text
  choral transcribe talk.mp3 --format srt > talk.srt
  choral models list                                 available and installed models
  choral doctor                                      check the installation

`choral COMMAND --help` describes a command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    sys.excepthook = _ask_for_report
    _open_closed_streams()
    _use_utf8()
    raise_on_sigterm()
    try:
        return _run(normalise(sys.argv[1:] if arguments is None else arguments))
    except ChoralError as error:
        message(*error_lines(str(error), error))
        return error.exit_code
    except StdoutClosed:
        # Python flushes standard output again at exit, and would print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt as interrupt:
        message("choral: stopped")
        return interrupt_code(interrupt)


def _run(arguments: Sequence[str]) -> int:
    parsed = parse(arguments)
    if not hasattr(parsed, "run"):
        parsed.parser.print_help()
        return 0
    exit_code: int = parsed.run(parsed)
    return exit_code


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of one command, with the parser that read them and, unless only help is shown, its function."""
    parsed: argparse.Namespace
    parsed, unknown = main_parser().parse_known_args(arguments)
    _add_interspersed_inputs(parsed, unknown)
    return parsed


def main_parser() -> Parser:
    parser = Parser(prog="choral", usage="choral COMMAND …", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    add_command_modules(parser, COMMANDS, "choral.cli.")
    return parser


def _add_interspersed_inputs(parsed: argparse.Namespace, unknown: list[str]) -> None:
    """argparse stops taking inputs at the first flag after one: the inputs after it are in `unknown`."""
    is_literal = "--" in unknown
    before = unknown[: unknown.index("--")] if is_literal else unknown
    flags = [argument for argument in before if argument.startswith("-") and argument != "-"]
    if flags or (unknown and not hasattr(parsed, "audio")):
        parsed.parser.refuse_unknown(flags or unknown)
    if unknown:
        parsed.audio += [*before, *unknown[len(before) + 1 :]]


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        write_stdout(f"choral {__version__}\n")
        parser.exit()


def _open_closed_streams() -> None:
    """Keep the next file that is opened from becoming standard input, output or error where those are closed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _use_utf8() -> None:
    """Write UTF-8 to files and pipes; a terminal that cannot show a letter gets a question mark."""
    if sys.stdout is None:
        return
    assert isinstance(sys.stdout, io.TextIOWrapper)
    if sys.stdout.isatty():
        sys.stdout.reconfigure(errors="replace")
    else:
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


def _ask_for_report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, trace)
    message("choral: this is a bug in Choral, not a mistake of yours. Please report it with the lines above.")


if __name__ == "__main__":
    sys.exit(main())
