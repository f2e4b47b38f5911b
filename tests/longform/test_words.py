"""Alignment and its borders, piece by piece against openai-whisper's."""

import numpy as np
import torch
import whisper.timing
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.longform.dtw import warp
from choral.longform.words import Timing, median_filter, merge_punctuation
from choral.types import TranscribeOptions


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 120), seed=st.integers(0, 2**31), ties=st.booleans())
def test_warping_takes_the_reference_path(rows, columns, seed, ties):
    cost = np.random.default_rng(seed).normal(size=(rows, columns))
    if ties:  # equal neighbours must be told apart the same way
        cost = cost.round()
    expected = whisper.timing.dtw_cpu(cost.astype(np.float32).astype(np.float64))
    found = warp(cost.astype(np.float32))
    assert np.array_equal(np.stack(found), expected)


@settings(max_examples=60, deadline=None)
@given(width=st.integers(1, 60), seed=st.integers(0, 2**31))
def test_median_filter(width, seed):
    x = np.random.default_rng(seed).normal(size=(2, 3, width)).astype(np.float32)
    assert np.array_equal(median_filter(x), whisper.timing.median_filter(torch.from_numpy(x), 7).numpy())


pieces = st.sampled_from([" a", "b", " word", ",", ".", "?", ' "', '"', " (", ")", " -", " ", "”", " “", "、", "。"])


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=10))
def test_punctuation_joins_the_words_it_joins_in_the_reference(texts):
    options = TranscribeOptions()
    oracle = [whisper.timing.WordTiming(text, [i], 0.0, 0.0, 1.0) for i, text in enumerate(texts)]
    whisper.timing.merge_punctuations(oracle, options.prepend_punctuations, options.append_punctuations)
    timings = [Timing(text, 1, 0.0, 0.0, 1.0) for text in texts]
    merge_punctuation(timings, options)
    assert [t.text for t in timings] == [t.word for t in oracle]
    assert [t.n_tokens for t in timings] == [len(t.tokens) for t in oracle]
