"""What went wrong with single inputs or models of a run that goes on, told at once, and the exit code of it all."""

from __future__ import annotations

from dataclasses import dataclass, field

from choral.cli.progress import message
from choral.errors import ChoralError


@dataclass(frozen=True)
class Failure:
    """Something that was asked for and gave nothing, and why."""

    label: str
    error: ChoralError

    def __str__(self) -> str:
        reason = str(self.error).removeprefix(f"{self.label}: ").removeprefix(f"{self.label} ")
        return f"{self.label}: {reason}"


@dataclass
class Failures:
    told: list[Failure] = field(default_factory=list)

    def tell(self, failure: Failure) -> None:
        message(f"choral: {failure}")
        self.told.append(failure)

    @property
    def exit_code(self) -> int:
        """That of the failures if they are of one kind."""
        codes = {failure.error.exit_code for failure in self.told}
        if not codes:
            return 0
        return codes.pop() if len(codes) == 1 else ChoralError.exit_code
