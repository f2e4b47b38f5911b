"""Values that come from outside, checked against the type hints of the class that takes them.

numpy's numbers and arrays are taken for Python's, lists for tuples and whole numbers for floats; everything else must
be what the hint says, and a number must be finite.
"""

from __future__ import annotations

import dataclasses
import math
import types
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from choral.errors import UsageError


def check_fields(instance: Any) -> None:
    """Raises `UsageError` for the first field of a frozen dataclass that is not of its type; tidies the others."""
    for name, default, hint in _fields(instance.__class__):
        given = getattr(instance, name)
        if given is not default:
            object.__setattr__(instance, name, _checked(name, _plain(given), hint))


@cache
def _fields(kind: type) -> tuple[tuple[str, Any, Any], ...]:
    """Name, default and type hint: evaluating hints takes longer than all the checks of a request."""
    hints = get_type_hints(kind)
    return tuple((field.name, field.default, hints[field.name]) for field in dataclasses.fields(kind))


def _plain(value: Any) -> Any:
    """What numpy and torch call a number or an array of numbers, as Python's own."""
    return value.tolist() if callable(getattr(value, "tolist", None)) else value


def _checked(name: str, value: Any, hint: Any) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for kind in kinds:
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if get_origin(kind) is tuple and isinstance(value, list | tuple):
            return tuple(_checked(name, _plain(element), get_args(kind)[0]) for element in value)
        if _is_number(value) and kind is float:
            return float(value)
        if isinstance(kind, type) and type(value) is kind and kind is not float:
            return value
    raise UsageError(f"{name} is {value!r}; it must be {' or '.join(_describe(kind) for kind in kinds)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple:
        return f"a list, each of them {_describe(get_args(kind)[0])}"
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", types.NoneType: "None"}
    return names[kind]
