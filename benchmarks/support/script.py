"""Command line of the benchmark scripts: flags, messages and exit codes work as in `choral bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from choral.cli.arguments import Parser, normalise
from choral.cli.bench import add_quiet
from choral.cli.console import message
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
    add_quiet(parser)
    if has_machine_flags:
        add_machine_flags(parser.add_argument_group("model and machine"))
    try:
        sys.exit(run(parser.parse_args(normalise(sys.argv[1:]))))
    except ChoralError as error:
        message(*error_lines(str(error), error))
        sys.exit(error.exit_code)
