"""Command-line frame of the benchmark scripts: flags, messages and exit codes work as in `choral bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from choral.cli.arguments import Parser, normalise
from choral.cli.console import message, write_stdout
from choral.cli.failures import error_lines
from choral.cli.shared_flags import add_machine_flags
from choral.errors import ChoralError


def run_script(
    description: str,
    add_arguments: Callable[[Parser], None],
    run: Callable[[argparse.Namespace], int],
    *,
    usage: str = "[FOLDER] [options]",
    epilog: str | None = None,
    has_machine_flags: bool = True,
) -> NoReturn:
    """Parse the flags, run the benchmark, print a Choral error as one line, and exit."""
    program = f"python benchmarks/{Path(sys.argv[0]).name}"
    parser = Parser(prog=program, usage=f"{program} {usage}", description=description, epilog=epilog)
    add_arguments(parser)
    parser.add_argument("--quiet", action="store_true", help="print the result only, no progress")
    if has_machine_flags:
        add_machine_flags(parser.add_argument_group("model and machine"))
    try:
        sys.exit(run(parser.parse_args(normalise(sys.argv[1:]))))
    except ChoralError as error:
        message(*error_lines(str(error), error))
        sys.exit(error.exit_code)


def add_folder(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help=argparse.SUPPRESS)


def progress(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Prints one line on standard error, unless --quiet is set."""
    return (lambda line: None) if arguments.quiet else message


__all__ = ["add_folder", "message", "progress", "run_script", "write_stdout"]
