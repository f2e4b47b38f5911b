"""What went wrong with single inputs or models of a run that goes on, told at once, and the exit code of it all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from choral.cli.progress import message
from choral.errors import ChoralError, ModelError


@dataclass(frozen=True)
class Failure:
    """Something that was asked for and gave nothing, and why."""

    label: str
    error: ChoralError

    def __str__(self) -> str:
        """The label once, whether or not the error's own text begins with it."""
        text = str(self.error)
        names_itself = text.startswith((f"{self.label}: ", f"{self.label} ", f"{self.label!r} "))
        return text if names_itself else f"{self.label}: {text}"


def error_lines(text: str, error: ChoralError) -> list[str]:
    """Those of a model list the sources that were tried; a line break in any other is part of a file's name."""
    return f"choral: {text}".split("\n") if isinstance(error, ModelError) else [f"choral: {text}"]


@dataclass
class Failures:
    """Counted, not kept: an error holds on to all that was at work when it was raised."""

    n_told: int = 0
    codes: set[int] = field(default_factory=set)

    @classmethod
    def telling(cls, failures: Iterable[Failure]) -> Failures:
        told = cls()
        for failure in failures:
            told.tell(failure)
        return told

    def tell(self, failure: Failure) -> None:
        message(*error_lines(str(failure), failure.error))
        self.n_told += 1
        self.codes.add(failure.error.exit_code)

    @property
    def exit_code(self) -> int:
        """That of the failures if they are of one kind."""
        if not self.codes:
            return 0
        return min(self.codes) if len(self.codes) == 1 else ChoralError.exit_code
