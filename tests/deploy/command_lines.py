"""The deploy/ folder, and a check that a command line in it parses."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from choral.cli.arguments import normalise
from choral.cli.main import parse

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse with the real parser; an unknown flag raises."""
    return parse(normalise(arguments))


def known_variables() -> set[str]:
    """The environment variables that Choral's code names."""
    text = "".join(path.read_text() for path in (ROOT / "src" / "choral").rglob("*.py"))
    return set(re.findall(r"\bCHORAL_[A-Z_]+", text))
