"""JSON objects that clients send: each field is taken by name and checked, and what nobody took is refused.

Every refusal is a `ApiError` whose `param` is the path of the field, as in `session.audio.input.format.rate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from choral.server.api_errors import ApiError

SHOWN = 60  # characters of a wrong value


class JsonObject:
    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise ApiError(f"{path or 'an event'} must be an object in braces", param=path or None, code="invalid_type")
        self._fields: dict[str, Any] = dict(value)
        self._path = path

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def wrong(self, name: str, message: str, code: str = "invalid_value") -> ApiError:
        return ApiError(f"{self.path(name)} {message}", param=self.path(name), code=code)

    def take(self, name: str) -> Any:
        """The value, or None where there is none."""
        return self._fields.pop(name, None)

    def child(self, name: str) -> JsonObject:
        """An object; an empty one where there is none."""
        return JsonObject(self._fields.pop(name, {}), self.path(name))

    def text(self, name: str, *, most: int | None = None) -> str | None:
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(name, "must be a text", "invalid_type")
        if most is not None and len(value) > most:
            raise self.wrong(name, f"has {len(value)} characters: {most} are the most", "string_above_max_length")
        return value

    def needed(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise self.wrong(name, "is missing", "missing_required_parameter")
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str:
        value = self.needed(name)
        if value not in choices:
            raise self.wrong(name, f"is {shown(value)}; it must be {' or '.join(choices)}")
        return value

    def number(self, name: str, default: float, most: float) -> float:
        """From 0 up."""
        value = self._fields.pop(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= most:  # which is not so of NaN either
            raise self.wrong(name, f"is {shown(value)}; it must be a number from 0 to {most:g}")
        return float(value)

    def only(self, name: str, *allowed: object) -> None:
        """A field that changes nothing here: it may say what is done anyway, and nothing else."""
        value = self.take(name)
        if value is not None and value not in allowed:
            raise self.wrong(name, "is not supported: leave it out", "unsupported_value")

    def end(self) -> None:
        for name in self._fields:
            raise self.wrong(name[:SHOWN], "is not known here: leave it out", "unknown_parameter")


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
