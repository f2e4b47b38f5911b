"""The findings of `choral doctor`: facts under headings, how serious each is, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from choral.cli.console import printable


class State(Enum):
    """How a fact is marked in the report."""

    OK = " "
    NOTE = "!"  # it works, and could work better
    PROBLEM = "✗"  # transcribing would not work


@dataclass(frozen=True)
class Finding:
    subject: str
    text: str
    state: State = State.OK
    fix: str | None = None


@dataclass(frozen=True)
class Section:
    heading: str
    findings: tuple[Finding, ...]


def count(sections: Iterable[Section], state: State) -> int:
    return sum(finding.state is state for section in sections for finding in section.findings)


def render_sections(sections: Sequence[Section]) -> str:
    """Lines of text; the subjects of all sections share one column."""
    width = max(len(finding.subject) for section in sections for finding in section.findings)
    return "\n".join(_render_section(section, width) for section in sections)


def _render_section(section: Section, width: int) -> str:
    lines = [printable(section.heading)]
    for finding in section.findings:
        lines.append(printable(f"  {finding.state.value} {finding.subject.ljust(width)}  {finding.text}"))
        if finding.fix is not None:
            lines.append(printable(f"    {' ' * width}  fix: {finding.fix}"))
    return "\n".join(lines) + "\n"


def first_line(error: BaseException) -> str:
    """The first line of a package's error message, without the page of advice that some add to it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
