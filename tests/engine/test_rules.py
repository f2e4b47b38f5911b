"""Every rule against openai-whisper's filters, over random texts."""

import numpy as np
import pytest
import torch
import whisper.decoding
import whisper.tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.engine.rules import History, rules_for
from choral.engine.window import Decode
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer

N_VOCAB = 51865
DIMS = ModelDims(80, 1500, 384, 6, 4, N_VOCAB, 448, 384, 6, 4)
TOKENIZER = Tokenizer.for_checkpoint(DIMS)
ORACLE = whisper.tokenizer.get_tokenizer(True, num_languages=99, language="en", task="transcribe")
CPU = torch.device("cpu")

text_token = st.integers(0, TOKENIZER.eot - 1)
timestamp = st.integers(TOKENIZER.timestamp_begin, N_VOCAB - 1)
texts = st.lists(st.one_of(text_token, timestamp), max_size=12)


def oracle_filters(work: Decode) -> list[whisper.decoding.LogitFilter]:
    filters: list[whisper.decoding.LogitFilter] = []
    if work.suppress_blank:
        filters.append(whisper.decoding.SuppressBlank(ORACLE, 0))
    filters.append(whisper.decoding.SuppressTokens(work.suppress_tokens))
    if work.timestamps:
        latest = None if work.max_initial_timestamp is None else round(work.max_initial_timestamp / 0.02)
        filters.append(whisper.decoding.ApplyTimestampRules(ORACLE, 0, latest))
    return filters


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 4).flatmap(
        lambda n: st.integers(0, 12).flatmap(
            lambda length: st.lists(
                st.lists(st.one_of(text_token, timestamp), min_size=length, max_size=length), min_size=n, max_size=n
            )
        )
    ),
    timestamps=st.booleans(),
    suppress_blank=st.booleans(),
    max_initial=st.sampled_from([None, 0.5, 1.0, 30.0]),
    seed=st.integers(0, 2**31),
)
def test_rules_forbid_what_the_reference_forbids(rows, timestamps, suppress_blank, max_initial, seed):
    work = Decode(
        timestamps=timestamps,
        suppress_blank=suppress_blank,
        max_initial_timestamp=max_initial,
        suppress_tokens=TOKENIZER.suppressed((-1,)),
    )
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 4, (len(rows), N_VOCAB)).astype(np.float32))
    expected = logits.clone()
    tokens = torch.tensor(rows, dtype=torch.long).reshape(len(rows), -1)
    for oracle_filter in oracle_filters(work):
        oracle_filter.apply(expected, tokens)

    history = History.empty(len(rows), CPU)
    for column in tokens.T:
        history.append(column, TOKENIZER.timestamp_begin)
    for rule in rules_for(work, TOKENIZER, N_VOCAB, CPU):
        rule.apply(logits, history)

    assert torch.equal(torch.isinf(logits), torch.isinf(expected))
    assert torch.equal(logits, expected)


def test_zero_as_latest_first_timestamp_allows_only_zero():
    """The reference takes 0 for "no limit"; here it means what it says."""
    work = Decode(max_initial_timestamp=0.0)
    logits = torch.zeros(1, N_VOCAB)
    for rule in rules_for(work, TOKENIZER, N_VOCAB, CPU):
        rule.apply(logits, History.empty(1, CPU))
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [TOKENIZER.timestamp_begin]


@pytest.mark.parametrize("order", [[1, 0], [0, 0], [1, 1]])
def test_history_follows_its_rows(order):
    history = History.empty(2, CPU)
    begin = TOKENIZER.timestamp_begin
    history.append(torch.tensor([begin + 3, 7]), begin)
    history.append(torch.tensor([5, begin + 9]), begin)
    history.select_rows(torch.tensor(order))
    assert history.last.tolist() == [[5, begin + 9][row] for row in order]
    assert history.before_last.tolist() == [[begin + 3, 7][row] for row in order]
    assert history.last_timestamp.tolist() == [[begin + 3, begin + 9][row] for row in order]
