"""`choral keys add|list|remove`: the API keys of a server."""

from __future__ import annotations

import argparse
from pathlib import Path

from choral.cli.arguments import Parser, add_flags, add_subcommand, add_subcommands, given_options
from choral.cli.console import format_table, write_stdout
from choral.errors import UsageError

LIMITS = ("requests_per_minute", "audio_minutes_per_day", "parallel_requests")
USAGE = "choral keys COMMAND …"
DESCRIPTION = """\
The API keys of `choral serve --api-keys-file FILE`. The file holds only hashes: a key is printed once,
when it is created. A running server sees changes at once.
"""


def add_arguments(parser: Parser) -> None:
    from choral.server.api_keys import ApiKey

    commands = add_subcommands(parser)
    for name, run, text in (
        ("add", run_add, "create a key, and print it once"),
        ("list", run_list, "show the names and limits of the keys"),
        ("remove", run_remove, "delete a key"),
    ):
        command = add_subcommand(commands, name, run, text, usage=f"choral keys {name} …")
        if name != "list":
            command.add_argument("name", metavar="NAME", help="name of the key")
        command.add_argument("--file", type=Path, required=True, metavar="FILE", help="file with the keys")
        if name == "add":
            add_flags(command.add_argument_group("limits"), ApiKey, LIMITS)
            add_flags(command.add_argument_group("rights"), ApiKey, ("admin",))


def run_add(arguments: argparse.Namespace) -> int:
    from choral.server.api_keys import COMMAND_LINE_NAME, ApiKey, hash_secret, new_secret, read_keys, write_keys

    keys = read_keys(arguments.file) if arguments.file.exists() else ()
    if any(key.name == arguments.name for key in keys):
        raise UsageError(
            f"{arguments.file} already has a key {arguments.name!r}: remove it first, or choose another name"
        )
    secret = new_secret()
    if arguments.name == COMMAND_LINE_NAME:
        raise UsageError(f"{arguments.name!r} is the name of the key in --api-key: choose another name")
    given = {name: value for name, value in given_options(arguments, ApiKey).items() if name in (*LIMITS, "admin")}
    write_keys(arguments.file, (*keys, ApiKey(name=arguments.name, sha256=hash_secret(secret), **given)))
    write_stdout(f"{secret}\n")
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    from choral.server.api_keys import read_keys

    keys = read_keys(arguments.file)
    rows = [[key.name, *(f"{getattr(key, name):g}" for name in LIMITS), "yes" if key.admin else "no"] for key in keys]
    header = ["name", *(name.replace("_", " ") for name in LIMITS), "admin"]
    write_stdout(format_table([header, *rows], range(1, 4)))
    return 0


def run_remove(arguments: argparse.Namespace) -> int:
    from choral.server.api_keys import read_keys, write_keys

    keys = read_keys(arguments.file)
    kept = [key for key in keys if key.name != arguments.name]
    if len(kept) == len(keys):
        raise UsageError(f"{arguments.file} has no key {arguments.name!r}: `choral keys list` shows the keys")
    write_keys(arguments.file, kept)
    return 0
