"""Inputs or models that failed while the run goes on: reported at once, and the exit code of the whole run."""

from __future__ import annotations

from dataclasses import dataclass, field

from choral.cli.console import message
from choral.errors import ChoralError, ModelError


@dataclass(frozen=True)
class Failure:
    """The input, model or job that failed, and why."""

    label: str
    error: ChoralError

    def __str__(self) -> str:
        """The label and the error, with the label once even where the error's text begins with it."""
        text = str(self.error)
        has_label = text.startswith((f"{self.label}: ", f"{self.label} ", f"{self.label!r} "))
        return text if has_label else f"{self.label}: {text}"


def error_lines(text: str, error: ChoralError) -> list[str]:
    """Model errors list the sources that were tried, one per line; elsewhere a line break is part of a file name."""
    return f"choral: {text}".split("\n") if isinstance(error, ModelError) else [f"choral: {text}"]


@dataclass
class Failures:
    """Counts failures without keeping the errors, which would hold on to audio and models through their tracebacks."""

    n_reported: int = 0
    codes: set[int] = field(default_factory=set)

    def report(self, *failures: Failure) -> None:
        for failure in failures:
            message(*error_lines(str(failure), failure.error))
            self.n_reported += 1
            self.codes.add(failure.error.exit_code)

    @property
    def exit_code(self) -> int:
        """The exit code of the failures if all have the same, 1 otherwise."""
        if not self.codes:
            return 0
        return min(self.codes) if len(self.codes) == 1 else ChoralError.exit_code
