"""Define options and settings as dataclass fields, and validate their values: type hints, ranges and lengths.

Every failure is a `UsageError` that names the field, the value and what is accepted. numpy scalars and arrays convert
to Python numbers and lists, lists to tuples, and integers to floats; every other value must match its type hint, and
numbers must be finite.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import types
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from choral.errors import UsageError

# Of a wrong value, in messages:
MAX_SHOWN_CHARACTERS, MAX_SHOWN_VALUES, MAX_SHOWN_BITS = 100, 10, 256


def option(
    default: Any,
    text: str,
    *,
    metavar: str | None = None,
    within: tuple[float, float] | None = None,
    max_length: int | None = None,
    separator: str = ",",
) -> Any:
    """A dataclass field with its help text, the accepted range of its numbers, and the most characters or values.

    `check_fields` enforces both. A text with `max_length` must also be valid Unicode. `separator` is between the values
    of a list on the command line.
    """
    metadata = {"help": text, "metavar": metavar, "within": within, "max_length": max_length, "separator": separator}
    return dataclasses.field(default=default, metadata=metadata)


def check_fields(instance: Any) -> None:
    """Raise `UsageError` for the first field of a frozen dataclass with a wrong value; convert the others in place."""
    for name, default, hint, bounds, max_length in _fields(instance.__class__):
        value = getattr(instance, name)
        if value is not default:
            value = _to_python(value)
            if max_length is not None:
                _check_length(name, value, max_length)
            value = _convert(name, value, hint)
            object.__setattr__(instance, name, value)
            if bounds is not None and value is not None:
                for number in _extremes(value):
                    check_range(name, number, *bounds)


def _extremes(value: Any) -> tuple[float, ...]:
    """The smallest and the largest number of a list, or the number."""
    if isinstance(value, tuple):
        return (min(value), max(value)) if value else ()
    return (value,)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise `UsageError` unless `low <= value <= high`."""
    if not low <= value <= high:
        kind = "a whole number" if isinstance(value, int) and isinstance(low, int) else "a number"
        raise UsageError(f"{name} is {_shown(value)}; it must be {kind} from {low} to {high}")


def _check_length(name: str, value: Any, max_length: int) -> None:
    if isinstance(value, str):
        if len(value) > max_length:
            raise UsageError(f"{name} has {len(value):,} characters; it must have at most {max_length:,}")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UsageError(f"{name} is {_shown(value)}; it must be valid Unicode: it has half of a surrogate pair")
    elif isinstance(value, list | tuple | dict) and len(value) > max_length:
        raise UsageError(f"{name} has {len(value):,} values; it must have at most {max_length:,}")


@cache
def _fields(kind: type) -> tuple[tuple[str, Any, Any, tuple[float, float] | None, int | None], ...]:
    """Name, default, hint, range and length of each field; cached, because resolving hints costs more than a check."""
    hints = get_type_hints(kind)
    return tuple(
        (
            field.name,
            field.default,
            hints[field.name],
            field.metadata.get("within"),
            field.metadata.get("max_length"),
        )
        for field in dataclasses.fields(kind)
    )


@cache
def union_members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, None last; any other hint is the only member."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return tuple(sorted(members, key=lambda member: member is types.NoneType))


def literal_choices(hint: Any) -> tuple[Any, ...]:
    """The values of the `Literal` in a hint or its union; empty if there is none."""
    return next((get_args(member) for member in union_members(hint) if get_origin(member) is Literal), ())


def _to_python(value: Any) -> Any:
    """Convert a numpy or torch scalar or array to Python numbers."""
    return value.tolist() if callable(getattr(value, "tolist", None)) else value


def _convert(name: str, value: Any, hint: Any) -> Any:
    kinds = union_members(hint)
    for kind in kinds:
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if get_origin(kind) is tuple and isinstance(value, list | tuple):
            return _convert_all(name, value, get_args(kind)[0])
        if get_origin(kind) is dict and isinstance(value, dict):
            key, of = get_args(kind)
            return dict(zip(_convert_all(name, [*value], key), _convert_all(name, [*value.values()], of), strict=True))
        if _is_number(value) and kind is float:
            return float(value)
        if isinstance(kind, type) and type(value) is kind and kind is not float:
            return value
    raise UsageError(f"{name} is {_shown(value)}; it must be {' or '.join(_describe(kind) for kind in kinds)}")


def _convert_all(name: str, values: Sequence[Any], kind: Any) -> tuple[Any, ...]:
    """A list may have thousands of values, which a client sends for little: the usual ones are checked together."""
    if kind in (int, float) and set(map(type, values)) == {kind} and (kind is int or all(map(math.isfinite, values))):
        return tuple(values)
    return tuple(_convert(name, _to_python(value), kind) for value in values)


def _is_number(value: Any) -> bool:
    """Whether it converts to a finite float; an int may be too large for one."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -sys.float_info.max <= value <= sys.float_info.max
    )


def _shown(value: Any) -> str:
    """The value for a message, shortened. Python refuses to print integers of more than 4,300 digits."""
    if isinstance(value, int) and value.bit_length() > MAX_SHOWN_BITS:
        return f"a number of {value.bit_length():,} bits"
    if isinstance(value, list | tuple):
        shown = [*map(_shown, value[:MAX_SHOWN_VALUES]), *["…"] * (len(value) > MAX_SHOWN_VALUES)]
        return f"[{', '.join(shown)}]"
    if isinstance(value, str | bytes) and len(value) > MAX_SHOWN_CHARACTERS:
        return f"{value[:MAX_SHOWN_CHARACTERS]!r}…"
    return repr(value)


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple:
        return f"a list, each of them {_describe(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"an object of {'strings' if get_args(kind)[1] is str else 'lists of numbers'}"
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", types.NoneType: "None"}
    return names[kind]
