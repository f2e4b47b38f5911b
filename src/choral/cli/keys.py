"""`choral keys`: makes, lists and removes the API keys of a server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from choral.cli.arguments import Parser, add_flags, given_options
from choral.cli.outputs import write_stdout
from choral.cli.table import aligned
from choral.errors import UsageError

LIMITS = ("requests_per_minute", "audio_minutes_per_day", "parallel_requests")
DESCRIPTION = """\
The API keys of `choral serve --api-keys-file FILE`. The file holds only hashes: a key is shown once, when
it is made. A server that runs sees changes at once.
"""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    from choral.server.api_keys import ApiKey

    parser: Parser = commands.add_parser(
        "keys", help="make and remove API keys of a server", usage="choral keys COMMAND …", description=DESCRIPTION
    )
    parser.set_defaults(parser=parser)
    own = parser.add_subparsers(prog="choral keys", title="commands", metavar="COMMAND")
    for name, run, text in (
        ("add", add, "make a key, and print it once"),
        ("list", show, "names and limits"),
        ("remove", remove, "take a key back"),
    ):
        command: Parser = own.add_parser(name, help=text, usage=f"choral keys {name} …", description=text)
        if name != "list":
            command.add_argument("name", metavar="NAME", help="whose key it is")
        command.add_argument("--file", type=Path, required=True, metavar="FILE", help="where the keys are kept")
        if name == "add":
            add_flags(command.add_argument_group("limits"), ApiKey, LIMITS)
        command.set_defaults(run=run, parser=command)


def add(arguments: argparse.Namespace) -> int:
    from choral.server.api_keys import ApiKey, hash_secret, new_secret, read_keys, write_keys

    keys = read_keys(arguments.file) if arguments.file.exists() else ()
    if any(key.name == arguments.name for key in keys):
        raise UsageError(
            f"{arguments.file} has a key {arguments.name!r} already: remove it first, or choose another name"
        )
    secret = new_secret()
    limits = {name: value for name, value in given_options(arguments, ApiKey).items() if name in LIMITS}
    write_keys(arguments.file, (*keys, ApiKey(name=arguments.name, sha256=hash_secret(secret), **limits)))
    write_stdout(f"{secret}\n")
    return 0


def show(arguments: argparse.Namespace) -> int:
    from choral.server.api_keys import read_keys

    rows = [[key.name, *(f"{getattr(key, name):g}" for name in LIMITS)] for key in read_keys(arguments.file)]
    write_stdout(aligned([["name", *(name.replace("_", " ") for name in LIMITS)], *rows], range(1, 4)))
    return 0


def remove(arguments: argparse.Namespace) -> int:
    from choral.server.api_keys import read_keys, write_keys

    keys = read_keys(arguments.file)
    kept = [key for key in keys if key.name != arguments.name]
    if len(kept) == len(keys):
        raise UsageError(f"{arguments.file} has no key {arguments.name!r}: `choral keys list` shows those that are")
    write_keys(arguments.file, kept)
    return 0
