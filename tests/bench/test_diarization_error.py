"""The diarization error rate in cases computed by hand, and the mapping of speakers against all permutations."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from choral.bench.diarization_error import DiarizationError, best_mapping, diarization_error
from choral.diarization import SpeakerTurn


def turns(*values: tuple[float, float, str]) -> list[SpeakerTurn]:
    return [SpeakerTurn(*value) for value in values]


REFERENCE = turns((0, 10, "anna"), (8, 16, "ben"), (20, 24, "anna"))
WHOLE = [(0.0, 30.0)]


def test_names_do_not_matter() -> None:
    same = turns((8, 16, "Speaker 1"), (0, 10, "Speaker 2"), (20, 24, "Speaker 2"))
    assert diarization_error(REFERENCE, same, WHOLE) == DiarizationError(22, 0, 0, 0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (turns(), DiarizationError(22, 22, 0, 0)),
        # One speaker for all: the overlap misses one of two, and ben's 8 s are anna's or missed.
        (turns((0, 16, "x"), (20, 24, "x")), DiarizationError(22, 2, 0, 6)),
        # Two seconds too long, and one where nobody speaks.
        (turns((0, 10, "a"), (8, 18, "b"), (20, 24, "a"), (25, 26, "c")), DiarizationError(22, 0, 3, 0)),
        # The last turn has a name of its own: the mapping takes the longer of anna's two.
        (turns((0, 10, "a"), (8, 16, "b"), (20, 24, "c")), DiarizationError(22, 0, 0, 4)),
        # Speakers swapped in the first half: as many seconds right either way.
        (turns((0, 5, "a"), (5, 10, "b"), (8, 16, "b"), (20, 24, "a")), DiarizationError(22, 2, 0, 3)),
    ],
)
def test_parts_of_the_error(found: list[SpeakerTurn], expected: DiarizationError) -> None:
    error = diarization_error(REFERENCE, found, WHOLE)
    for name, value in vars(expected).items():
        assert getattr(error, name) == pytest.approx(value, abs=1e-9), name
    assert error.rate_percent == pytest.approx(100 * expected.error_s / 22)


def test_a_collar_leaves_out_the_edges_of_the_reference() -> None:
    late = turns((0.2, 10.2, "a"), (8.2, 16.2, "b"), (20.2, 24.2, "a"))
    assert diarization_error(REFERENCE, late, WHOLE).error_s == pytest.approx(6 * 0.2)
    error = diarization_error(REFERENCE, late, WHOLE, collar_s=0.25)
    # Anna alone 0.25–7.75, both 8.25–9.75, Ben alone 10.25–15.75, Anna again 20.25–23.75.
    assert error == DiarizationError(pytest.approx(7.5 + 2 * 1.5 + 5.5 + 3.5), 0, 0, 0)


def test_only_scored_parts_count() -> None:
    error = diarization_error(REFERENCE, turns((0, 4, "a"), (20, 30, "a")), [(0.0, 4.0), (22.0, 26.0)])
    assert error == DiarizationError(6, 0, 2, 0)


def test_no_speech_in_the_reference() -> None:
    assert diarization_error([], [], WHOLE).rate_percent == 0
    assert diarization_error([], turns((0, 1, "a")), WHOLE).rate_percent == 100


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 1_000_000))
def test_the_mapping_is_the_best(n_rows: int, n_columns: int, seed: int) -> None:
    common = np.random.default_rng(seed).integers(0, 20, (n_rows, n_columns)).astype(float)
    rows, columns = best_mapping(common)
    assert len(set(rows)) == len(rows) == len(set(columns)) == min(n_rows, n_columns)
    wide = common if n_rows <= n_columns else common.T
    choices = permutations(range(wide.shape[1]), len(wide))
    best = max(sum(wide[i, j] for i, j in enumerate(choice)) for choice in choices)
    assert sum(common[i, j] for i, j in zip(rows, columns, strict=True)) == best


def test_no_speakers_need_no_mapping() -> None:
    assert best_mapping(np.zeros((0, 3))) == ([], [])
    assert best_mapping(np.zeros((3, 0))) == ([], [])
