"""`choral doctor`: reports what Choral would use on this machine, what is missing and why, and how to fix it."""

from __future__ import annotations

import argparse
import logging
import platform
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from choral import __version__
from choral.cli.arguments import Parser
from choral.cli.console import write_stdout
from choral.cli.doctor_findings import Finding, Section, State, count, render_sections
from choral.cli.shared_flags import add_machine_flags, engine_settings, load_model
from choral.errors import ChoralError, MissingDependency
from choral.options import TranscribeOptions

USAGE = "choral doctor [options]"
DESCRIPTION = """\
What Choral would use on this machine, what is missing and why, and how to fix it.

With --model, that model is loaded (and downloaded if needed), and one second of noise is transcribed as a test.

Lines marked ! could be better; lines marked ✗ keep Choral from transcribing.
"""
EPILOG = "exit codes: 0 transcribing works here, 7 it does not"
NOISE_LEVEL = 0.1
NOISE_OPTIONS = TranscribeOptions(temperature=0.0, max_tokens=8)  # the text does not matter


def add_arguments(parser: Parser) -> None:
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    sections = list(examine(arguments))
    if arguments.model is not None and not count(sections, State.PROBLEM):
        sections.append(trial_section(arguments))
    n_problems = count(sections, State.PROBLEM)
    about = f"Choral {__version__} with Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    write_stdout(f"{about}\n\n{render_sections(sections)}\n{conclusion(n_problems)}\n")
    return MissingDependency.exit_code if n_problems else 0


def conclusion(n_problems: int) -> str:
    if not n_problems:
        return "Transcribing works here."
    problems = "what is" if n_problems == 1 else f"the {n_problems} things that are"
    return f"Transcribing does not work here: fix {problems} marked ✗ above."


def examine(arguments: argparse.Namespace) -> Iterator[Section]:
    from choral.cli import doctor_hardware as hardware
    from choral.cli import doctor_software as software

    driver = hardware.query_driver()
    # CTranslate2 before torch, which loads CUDA libraries: it must find its own.
    engines = {package.name: software.import_package(package) for package in software.ENGINES}
    packages = {package.name: software.import_package(package) for package in software.PACKAGES}
    yield hardware.hardware_section(driver)
    yield software.packages_section(packages)
    yield software.engines_section(engines, driver)
    yield software.models_section()
    model: str | None = arguments.model
    if packages["numpy"].module is not None:
        settings = engine_settings(arguments)
        engine, default_model = software.engine_finding(settings, engines)
        many, _ = software.engine_finding(replace(settings, optimize_for="throughput"), engines)
        model = model or default_model
    else:
        engine = many = Finding("engine", "unknown without numpy", State.NOTE)
    selected = [engine] if many.text == engine.text else [engine, many]
    if model is not None:
        selected.append(software.model_finding(model))
    is_installed = model is not None and selected[-1].state is State.OK
    yield hardware.disk_section(needs_download=not is_installed)
    if engine.state is not State.PROBLEM and packages["numpy"].module is not None:
        selected += [software.runtime_finding(engine), software.service_finding(engine)]
    yield Section("Would be used", tuple(selected))


def trial_section(arguments: argparse.Namespace) -> Section:
    """Load the model, and transcribe one second of noise."""
    heading = f"Trying {arguments.model}"
    try:
        return Section(heading, tuple(_trial(arguments)))
    except ChoralError as error:
        return Section(heading, (Finding("model", str(error), State.PROBLEM),))


def _trial(arguments: argparse.Namespace) -> Iterator[Finding]:
    import numpy as np

    from choral.audio.constants import SAMPLE_RATE

    started_s = time.monotonic()
    with _engine_log() as lines, closing(load_model(arguments)) as model:
        yield Finding("loaded", f"in {time.monotonic() - started_s:.1f} s")
        for line in lines:
            yield Finding("engine", line)
        noise = np.random.default_rng(0).normal(scale=NOISE_LEVEL, size=SAMPLE_RATE).astype(np.float32)
        started_s = time.monotonic()
        model.transcribe(noise, NOISE_OPTIONS)
        yield Finding("transcribed", f"one second of noise in {time.monotonic() - started_s:.2f} s")


@contextmanager
def _engine_log() -> Iterator[list[str]]:
    """Collect the log lines of the engine."""
    lines: list[str] = []
    logger, handler = logging.getLogger("choral.engine"), logging.Handler(logging.INFO)
    level = logger.level
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
