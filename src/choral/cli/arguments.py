"""The argument parser, and flags made from the fields of an options class.

Every field becomes one flag with its help text and default; a flag that is not given leaves the default of the class.
Flags may be spelled with dashes or underscores. Everything that argparse rejects is raised as `UsageError`.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, Self, TypeVar, get_args, get_origin, get_type_hints

from choral.audio.extensions import MEDIA_EXTENSIONS
from choral.cli.console import write_stdout
from choral.cli.inputs import STDIN
from choral.errors import UsageError
from choral.options import TranscribeOptions
from choral.validation import literal_choices, union_members

Options = TypeVar("Options")
Run = Callable[[argparse.Namespace], int]
HELP_WIDTH = 100
HELP_COLUMN = 34
MIN_COMMAND_COLUMN = 14


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        width = min(HELP_WIDTH, shutil.get_terminal_size().columns - 2)
        super().__init__(prog, max_help_position=HELP_COLUMN, width=width)
        self._action_max_length = MIN_COMMAND_COLUMN  # argparse ignores the indent of commands, and breaks their lines

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]", 1)
        return super()._format_action_invocation(action)


class Parser(argparse.ArgumentParser):
    """argparse with typed errors, no abbreviated flags, and a suggestion for a misspelt flag."""

    def __init__(self, *, module: str | None = None, **settings: Any) -> None:
        """`module` describes the command, and is imported when its arguments are parsed.

        It has `USAGE`, `DESCRIPTION`, perhaps `EPILOG`, and `add_arguments(parser)`, which sets the default `run` to
        the function that runs the command, unless it adds subcommands that do.
        """
        super().__init__(formatter_class=HelpFormatter, allow_abbrev=False, add_help=False, **settings)
        self.add_argument("-h", "--help", action="help", help="show this help")
        self.set_defaults(parser=self)
        self._module = module

    def load(self) -> Self:
        if self._module is not None:
            command = importlib.import_module(self._module)
            self._module = None
            self.usage, self.description = command.USAGE, command.DESCRIPTION
            self.epilog = getattr(command, "EPILOG", None)
            command.add_arguments(self)
        return self

    def print_help(self, file: object = None) -> None:
        write_stdout(self.format_help())

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse does, but an unknown flag is reported before a missing argument."""
        self.load()
        try:
            return super().parse_known_args(args, namespace)
        except UsageError as error:
            has_commands = self._subparsers is not None
            if not has_commands and "arguments are required" in str(error):
                self._refuse_unknown_flags(args)
            raise

    def _refuse_unknown_flags(self, arguments: Sequence[str]) -> None:
        before = itertools.takewhile(lambda argument: argument != "--", arguments)
        flags = [argument for argument in before if argument.startswith("-") and argument != STDIN]
        unknown = [flag for flag in flags if flag.partition("=")[0] not in self._option_string_actions]
        if unknown:
            self.refuse_unknown(unknown)

    def refuse_unknown(self, unknown: Sequence[str]) -> NoReturn:
        name = unknown[0].partition("=")[0]
        similar = difflib.get_close_matches(name, self._option_string_actions, n=1)
        hint = f" (did you mean {similar[0]}?)" if similar else ""
        if name.startswith("-") and _looks_like_file(unknown[0]):
            hint = f" (if it is a file, write ./{unknown[0]})"
        kind = "option" if name.startswith("-") else "argument"
        self.error(f"unknown {kind} {name}{hint}")


def _looks_like_file(argument: str) -> bool:
    return os.path.lexists(argument) or os.path.splitext(argument)[1].lower() in MEDIA_EXTENSIONS


def add_subcommands(parser: Parser) -> argparse._SubParsersAction[Any]:
    return parser.add_subparsers(prog=parser.prog, title="commands", metavar="COMMAND")


def add_subcommand(
    commands: argparse._SubParsersAction[Any], name: str, run: Run, help: str, **settings: Any
) -> Parser:
    """A subcommand; its description is the help text as a sentence unless `settings` has another."""
    settings.setdefault("description", f"{help[0].upper()}{help[1:]}.")
    parser: Parser = commands.add_parser(name, help=help, **settings)
    parser.set_defaults(run=run)
    return parser


def add_command_modules(parser: Parser, helps: Mapping[str, str], prefix: str) -> None:
    """Subcommands with these names and help texts; the module of each is `prefix` and the name."""
    commands = add_subcommands(parser)
    for name, text in helps.items():
        commands.add_parser(name, help=text, module=prefix + name)


def normalise(arguments: Iterable[str]) -> list[str]:
    """Replace underscores in flags by dashes, and join a value that starts with a minus to its flag.

    argparse would take a separate `-1,50` for a flag.
    """
    normal: list[str] = []
    is_literal = False
    for argument in arguments:
        is_negative = argument[:1] == "-" and (argument[1:2].isdecimal() or argument[1:2] == ".")
        follows_flag = bool(normal) and normal[-1].startswith("--") and "=" not in normal[-1]
        if is_literal:
            normal.append(argument)
        elif is_negative and follows_flag:
            normal[-1] += f"={argument}"
        elif argument.startswith("--"):
            is_literal = argument == "--"
            flag, equals, value = argument.partition("=")
            normal.append(flag.replace("_", "-") + equals + value)
        else:
            normal.append(argument)
    return normal


def add_flags(group: argparse._ArgumentGroup, options_class: type, names: Iterable[str]) -> None:
    """Add one flag for each of these fields."""
    hints = get_type_hints(options_class)
    fields = {field.name: field for field in dataclasses.fields(options_class)}
    for name in names:
        _add_flag(group, fields[name], hints[name])


def given_options(namespace: argparse.Namespace, options_class: type[Options]) -> dict[str, Any]:
    """The fields of this class whose flags were given."""
    assert dataclasses.is_dataclass(options_class)
    names = [field.name for field in dataclasses.fields(options_class)]
    return {name: getattr(namespace, name) for name in names if hasattr(namespace, name)}


def read_options(values: dict[str, Any]) -> TranscribeOptions:
    """The options, with languages and voices read here so that a wrong one fails before a model is loaded."""
    from choral.model.languages import check_languages
    from choral.speakers.voice_options import options_by_name

    options = options_by_name(**values)
    check_languages(options)
    return options


def _add_flag(group: argparse._ArgumentGroup, field: dataclasses.Field[Any], hint: Any) -> None:
    flag = "--" + field.name.replace("_", "-")
    help_text = describe(field.metadata["help"], field.default)
    settings: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": help_text}
    members = union_members(hint)
    if bool in members:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **settings)
    elif choices := literal_choices(hint):
        group.add_argument(flag, choices=choices, metavar="|".join(choices), **settings)
    else:
        metavar = field.metadata["metavar"] or _metavar(members)
        converter = _converter(members, field.metadata.get("separator", ","))
        group.add_argument(flag, type=converter, metavar=metavar, **settings)


def describe(text: str, default: object) -> str:
    """The help text with its default, escaped for argparse."""
    has_default = "default:" in text or "when not given" in text
    full_text = text if has_default else f"{text} (default: {_format_default(default)})"
    return full_text.replace("%", "%%")


def _format_default(default: object) -> str:
    if default in (None, (), ""):
        return "none"
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(f"{number:g}" for number in default)
    return str(default)


def _metavar(members: Sequence[Any]) -> str:
    if _is_term_list(members):
        return "TEXT|@FILE"
    if any(get_origin(member) is tuple for member in members):
        return "N,N,…"
    return "TEXT" if str in members else "N"


def _is_term_list(members: Sequence[Any]) -> bool:
    """Whether it is a text that may also be given as a list or an object."""
    return str in members and any(get_origin(member) in (tuple, dict) for member in members)


def _read_term_list(text: str) -> str:
    """The text, or that of the file whose name follows an @."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {text[1:]}: {error}") from error


def _converter(members: Sequence[Any], separator: str) -> Callable[[str], object]:
    """A function that turns the text after a flag into a value of one of these types."""
    list_type = next((member for member in members if get_origin(member) is tuple), None)

    def convert(text: str) -> object:
        if NoneType in members and text.lower() == "none":
            return None
        if _is_term_list(members):
            return _read_term_list(text)
        if list_type is not None:
            element = get_args(list_type)[0]
            return tuple(element(part) for part in text.split(separator) if part.strip())
        return text if get_origin(members[0]) is dict else members[0](text)

    convert.__name__ = {"N": "number", "N,N,…": "list of numbers"}.get(_metavar(members), "text")
    return convert
