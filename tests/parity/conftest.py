"""Pairs of models, one for the whole session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from oracle import Pair, pair_from


@pytest.fixture(scope="session")
def tiny(tiny_ggml: Path) -> Iterator[Pair]:
    """The multilingual pair."""
    yield from pair_from(tiny_ggml)


@pytest.fixture(scope="session")
def tiny_en(tiny_en_pt: Path) -> Iterator[Pair]:
    """The English-only pair."""
    yield from pair_from(tiny_en_pt)
