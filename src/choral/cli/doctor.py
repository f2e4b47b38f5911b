"""`choral doctor`: what would be used here, what is missing and why, and what mends it, in plain words."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from typing import Any

from choral import __version__
from choral.cli.arguments import Parser
from choral.cli.health.findings import Finding, Section, State, count, rendered
from choral.cli.loading import add_machine_flags, settings_of
from choral.cli.outputs import write_stdout
from choral.errors import MissingDependency

DESCRIPTION = """\
What Choral would use on this machine, what is missing and why, and how to mend it.

With --model that model is loaded, fetched first if need be, and a second of noise is transcribed as a proof.

Lines marked ! could be better; those marked ✗ keep Choral from transcribing.
"""
EPILOG = "exit codes: 0 transcribing works here, 7 it does not"


def add_command(commands: Any) -> None:
    parser: Parser = commands.add_parser(
        "doctor",
        help="what would be used here, and what is missing",
        usage="choral doctor [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    sections = list(examine(arguments))
    if arguments.model is not None and not count(sections, State.PROBLEM):
        from choral.cli.health.proof import proof_section

        sections.append(proof_section(arguments))
    n_problems = count(sections, State.PROBLEM)
    about = f"Choral {__version__} with Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    write_stdout(f"{about}\n\n{rendered(sections)}\n{verdict(n_problems)}\n")
    return MissingDependency.exit_code if n_problems else 0


def verdict(n_problems: int) -> str:
    if not n_problems:
        return "Transcribing works here."
    what = "what is" if n_problems == 1 else f"the {n_problems} things that are"
    return f"Transcribing does not work here: mend {what} marked ✗ above."


def examine(arguments: argparse.Namespace) -> Iterator[Section]:
    from choral.cli.health.gpus import ask_driver
    from choral.cli.health.machine import machine_section
    from choral.cli.health.models import disk_section, models_section, wanted_model
    from choral.cli.health.packages import ENGINES, PACKAGES, engines_section, load, packages_section

    settings = settings_of(arguments)
    driver = ask_driver()
    # CTranslate2 before torch, which brings CUDA libraries along: what CTranslate2 finds by itself is what counts.
    engines = {package.name: load(package) for package in ENGINES}
    packages = {package.name: load(package) for package in PACKAGES}
    yield machine_section(driver)
    yield packages_section(packages)
    yield engines_section(engines, driver)
    yield models_section()
    used: list[Finding] = []
    name: str | None = arguments.model
    if packages["numpy"].module is not None:
        from choral.cli.health.choice import choose

        choice = choose(settings, engines)
        used.append(choice.finding)
        name = name or choice.default_model
    else:
        used.append(Finding("engine", "nobody can tell without numpy", State.NOTE))
    if name is not None:
        used.append(wanted_model(name))
    is_model_here = name is not None and used[-1].state is State.FINE
    yield disk_section(needs_fetching=not is_model_here)
    yield Section("Would be used", tuple(used))
