"""The help texts in docs/cli.md are what the command prints. Run as a script, this file writes them there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CLI = Path(__file__).parent.parent / "docs" / "cli.md"
BLOCK = re.compile(r"<!-- help: ?(?P<command>.*?) ?-->\n(?:```text\n.*?```\n)?", re.DOTALL)


def help_of(command: str) -> str:
    environment = {**os.environ, "COLUMNS": "100"}
    arguments = [sys.executable, "-m", "choral", *command.split(), "--help"]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment).stdout


def up_to_date(text: str) -> str:
    def block(match: re.Match[str]) -> str:
        command = match["command"]
        return f"<!-- help: {command} -->\n```text\n{help_of(command)}```\n".replace("help:  -->", "help: -->")

    return BLOCK.sub(block, text)


def test_help_texts_in_the_docs_are_current() -> None:
    text = CLI.read_text()
    assert text.count("```text") == text.count("<!-- help:") > 4
    assert up_to_date(text) == text, "run scripts/docs"


def test_links_in_the_docs_exist() -> None:
    root = CLI.parent.parent
    for page in [root / "README.md", root / "CONTRIBUTING.md", root / "SECURITY.md", *CLI.parent.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


if __name__ == "__main__":
    CLI.write_text(up_to_date(CLI.read_text()))
