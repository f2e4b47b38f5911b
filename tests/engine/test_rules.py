"""All rules over rows with different options and texts, compared with openai-whisper's filters row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import whisper.decoding
import whisper.tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.engine.rules import NO_TOKEN, History, Rules
from choral.engine.window import DecodeParams
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer

N_VOCAB = 51865
N_SLOTS = 16
DIMS = ModelDims(80, 1500, 384, 6, 4, N_VOCAB, 448, 384, 6, 4)
TOKENIZER = Tokenizer.for_checkpoint(DIMS)
BEGIN = TOKENIZER.timestamp_begin
ORACLE = whisper.tokenizer.get_tokenizer(True, num_languages=99, language="en", task="transcribe")
CPU = torch.device("cpu")

texts = st.lists(st.one_of(st.integers(0, TOKENIZER.eot - 1), st.integers(BEGIN, N_VOCAB - 1)), max_size=12)
works = st.builds(
    DecodeParams,
    timestamps=st.booleans(),
    suppress_blank=st.booleans(),
    max_initial_timestamp=st.sampled_from([None, 0.5, 1.0, 30.0]),
    suppress_tokens=st.sampled_from([(), (5, 50364), TOKENIZER.suppressed((-1,)), TOKENIZER.suppressed(())]),
)
rows_of_works = st.lists(st.tuples(works, texts), min_size=1, max_size=N_SLOTS)


def oracle_filters(params: DecodeParams) -> list[whisper.decoding.LogitFilter]:
    filters: list[whisper.decoding.LogitFilter] = []
    if params.suppress_blank:
        filters.append(whisper.decoding.SuppressBlank(ORACLE, 0))
    filters.append(whisper.decoding.SuppressTokens(params.suppress_tokens))
    if params.timestamps:
        latest = None if params.max_initial_timestamp is None else round(params.max_initial_timestamp / 0.02)
        filters.append(whisper.decoding.ApplyTimestampRules(ORACLE, 0, latest))
    return filters


def rules_after(rows: list[tuple[DecodeParams, list[int]]], slots: list[int]) -> Rules:
    """Rules after these texts, fed as by the engine: windows begin one by one, then each token for all at once."""
    rules = Rules(TOKENIZER, N_VOCAB, N_SLOTS, CPU)
    for slot, (params, _) in zip(slots, rows, strict=True):
        rules.begin((slot,), params)
    for i in range(max(len(text) for _, text in rows)):
        going_on = [(slot, text[i]) for slot, (_, text) in zip(slots, rows, strict=True) if i < len(text)]
        fed = torch.tensor(going_on)
        append(rules.history, fed[:, 0], fed[:, 1])
    return rules


def append(history: History, slots: torch.Tensor, tokens: torch.Tensor) -> None:
    history.set(slots, history.extended(slots, tokens))


def random_logits(n_rows: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 4, (n_rows, N_VOCAB)).astype(np.float32))


@settings(max_examples=100, deadline=None)
@given(rows=rows_of_works, order=st.permutations(range(N_SLOTS)), seed=st.integers(0, 2**31))
def test_rules_match_the_reference_for_each_row(
    rows: list[tuple[DecodeParams, list[int]]], order: list[int], seed: int
):
    slots = order[: len(rows)]
    logits = random_logits(len(rows), seed)
    expected = logits.clone()
    for i, (params, text) in enumerate(rows):
        for oracle_filter in oracle_filters(params):
            oracle_filter.apply(expected[i : i + 1], torch.tensor([text], dtype=torch.long))
    rules_after(rows, slots).apply(logits, torch.tensor(slots))
    assert torch.equal(logits, expected)


@settings(max_examples=20, deadline=None)
@given(rows=rows_of_works, seed=st.integers(0, 2**31), data=st.data())
def test_windows_outside_a_step_are_unaffected(
    rows: list[tuple[DecodeParams, list[int]]], seed: int, data: st.DataObject
):
    slots = list(range(len(rows)))
    some = data.draw(st.lists(st.sampled_from(slots), min_size=1, unique=True))
    rules = rules_after(rows, slots)
    all_logits = random_logits(len(rows), seed)
    some_logits = all_logits[some].clone()
    rules.apply(some_logits, torch.tensor(some))
    rules.apply(all_logits, torch.tensor(slots))
    assert torch.equal(some_logits, all_logits[some])


def test_max_initial_timestamp_of_zero_allows_only_zero():
    """openai-whisper treats 0 as "no limit"; here it allows only 0.00."""
    rules = Rules(TOKENIZER, N_VOCAB, 2, CPU)
    rules.begin((1,), DecodeParams(max_initial_timestamp=0.0))
    logits = torch.zeros(1, N_VOCAB)
    rules.apply(logits, torch.tensor([1]))
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [BEGIN]


def test_a_slot_is_reset_for_its_next_window():
    rules = Rules(TOKENIZER, N_VOCAB, 2, CPU)
    rules.begin((0, 1), DecodeParams(suppress_tokens=(7,), max_initial_timestamp=0.0))
    append(rules.history, torch.tensor([0, 1]), torch.tensor([BEGIN + 3, 5]))
    rules.begin((1,), DecodeParams(timestamps=False, suppress_blank=False))
    logits = torch.zeros(1, N_VOCAB)
    rules.apply(logits, torch.tensor([1]))
    assert torch.isfinite(logits).all()


def recent(history: History, slots: list[int]) -> list[Any]:
    found = history.at(torch.tensor(slots))
    columns = (found.last, found.before_last, found.last_timestamp, found.n_sampled)
    return [tuple(int(column[i]) for column in columns) for i in range(len(slots))]


def test_history_contains_the_newest_tokens():
    history = History(4, BEGIN, CPU)
    history.reset(torch.tensor([1, 3]))
    assert recent(history, [1]) == [(NO_TOKEN, NO_TOKEN, NO_TOKEN, 0)]
    append(history, torch.tensor([3, 1]), torch.tensor([BEGIN + 3, 7]))
    append(history, torch.tensor([1]), torch.tensor([8]))
    assert recent(history, [1, 3]) == [(8, 7, NO_TOKEN, 2), (BEGIN + 3, NO_TOKEN, BEGIN + 3, 1)]


@pytest.mark.parametrize("sources", [[1, 0], [0, 0], [1, 1]])
def test_history_is_reordered_with_its_rows(sources: list[int]):
    history = History(2, BEGIN, CPU)
    both = torch.tensor([0, 1])
    history.reset(both)
    append(history, both, torch.tensor([BEGIN + 3, 7]))
    append(history, both, torch.tensor([5, BEGIN + 9]))
    before = recent(history, [0, 1])
    history.set(both, history.extended(torch.tensor(sources), torch.tensor([8, 9])))
    moved = [before[source] for source in sources]
    assert recent(history, [0, 1]) == [
        (token, last, last_timestamp, n_sampled + 1)
        for token, (last, _, last_timestamp, n_sampled) in zip((8, 9), moved, strict=True)
    ]
