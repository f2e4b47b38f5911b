"""The proof that transcribing works: a model is loaded, says what it found, and hears one second of noise."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np

from choral.audio.constants import SAMPLE_RATE
from choral.cli.health.findings import Finding, Section, State
from choral.cli.loading import load_model
from choral.errors import ChoralError
from choral.types import TranscribeOptions

LOUDNESS = 0.1
FEW_TOKENS = 8  # what it makes of noise does not matter


def proof_section(arguments: argparse.Namespace) -> Section:
    heading = f"Trying {arguments.model}"
    try:
        return Section(heading, tuple(_tried(arguments)))
    except ChoralError as error:
        return Section(heading, (Finding("model", str(error), State.PROBLEM),))


def _tried(arguments: argparse.Namespace) -> Iterator[Finding]:
    started_s = time.monotonic()
    with engine_log() as lines, closing(load_model(arguments)) as model:
        yield Finding("loaded", f"in {time.monotonic() - started_s:.1f} s")
        for line in lines:
            yield Finding("engine", line)
        noise = np.random.default_rng(0).normal(scale=LOUDNESS, size=SAMPLE_RATE).astype(np.float32)
        started_s = time.monotonic()
        model.transcribe(noise, TranscribeOptions(temperature=0.0, max_tokens=FEW_TOKENS))
        yield Finding("transcribed", f"one second of noise in {time.monotonic() - started_s:.2f} s")


@contextmanager
def engine_log() -> Iterator[list[str]]:
    """What the engine says of itself while this lasts."""
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
