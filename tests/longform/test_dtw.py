"""Dynamic time warping and the median filter against openai-whisper's."""

import numpy as np
import torch
import whisper.timing
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.longform.dtw import dtw_path, median_filter


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 120), seed=st.integers(0, 2**31), ties=st.booleans())
def test_dtw_path_equals_openai_whisper(rows, columns, seed, ties):
    cost = np.random.default_rng(seed).normal(size=(rows, columns))
    if ties:  # ties must be broken the same way
        cost = cost.round()
    expected = whisper.timing.dtw_cpu(cost.astype(np.float32).astype(np.float64))
    found = dtw_path(cost.astype(np.float32))
    assert np.array_equal(np.stack(found), expected)


@settings(max_examples=60, deadline=None)
@given(width=st.integers(1, 60), seed=st.integers(0, 2**31))
def test_median_filter_equals_openai_whisper(width, seed):
    x = np.random.default_rng(seed).normal(size=(2, 3, width)).astype(np.float32)
    assert np.array_equal(median_filter(x), whisper.timing.median_filter(torch.from_numpy(x), 7).numpy())
