"""Greedy, sampling and beam search on a small table of logits; beam search is compared with openai-whisper's."""

from __future__ import annotations

import math

import pytest
import torch
import whisper.decoding
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.engine.host_sampler import top_k
from choral.engine.search import BeamSearch, Candidate, Next, Sampling, best_candidate, search_for
from choral.engine.window import DecodeParams

EOT = 9
N_VOCAB = 10


def table_logits(texts: list[tuple[int, ...]], seed: int) -> torch.Tensor:
    """Logits that depend on the whole text, as a decoder's do."""
    rows = []
    for text in texts:
        generator = torch.Generator().manual_seed(hash((seed, text)) % 2**31)
        rows.append(torch.randn(N_VOCAB, generator=generator))
    return torch.stack(rows)


class NoCache:
    def rearrange_kv_cache(self, source_indices: list[int]) -> None:
        pass


def oracle_beams(beam_size: int, patience: float, seed: int, max_tokens: int) -> list[Candidate]:
    decoder = whisper.decoding.BeamSearchDecoder(beam_size, EOT, NoCache(), patience)
    tokens, sums = torch.zeros(beam_size, 1, dtype=torch.long), torch.zeros(beam_size)
    for _ in range(max_tokens):
        logits = table_logits([tuple(row[1:]) for row in tokens.tolist()], seed)
        tokens, done = decoder.update(tokens, logits, sums)
        if done:
            break
    texts, scores = decoder.finalize(tokens[None], sums[None])
    return [Candidate(tuple(t.tolist()[1:-1]), s) for t, s in zip(texts[0], scores[0], strict=True)]


@settings(max_examples=100, deadline=None)
@given(
    beam_size=st.integers(2, 6),
    patience=st.sampled_from([0.5, 1.0, 2.0]),
    seed=st.integers(0, 10_000),
    max_tokens=st.integers(1, 12),
)
def test_beam_search_matches_the_reference(beam_size: int, patience: float, seed: int, max_tokens: int):
    search = BeamSearch(beam_size, patience, EOT)
    for _ in range(max_tokens):
        before = list(search.texts)
        best = top_k(table_logits(before, seed), search.n_top)
        going_on = search.advance(best.tokens, best.logprobs)
        for following in going_on:
            assert search.texts[following.row] == (*before[following.source_row], following.token)
        if not going_on:
            break
    found = {c.tokens: c.sum_logprob for c in search.candidates()}
    expected = {c.tokens: c.sum_logprob for c in oracle_beams(beam_size, patience, seed, max_tokens)}
    assert found == pytest.approx(expected, abs=1e-4)


def test_beams_split_and_end():
    """Both beams continue from row 0 and none from row 1; finished candidates are kept and counted."""
    search = BeamSearch(2, 1.0, EOT)
    first = search.advance([[1, 2, 3]] * 2, [[-1.0, -2.0, -3.0]] * 2)
    assert [following.token for following in first] == [1, 2]
    assert search.texts == [(1,), (2,)]
    assert search.advance([[4, 5, EOT], [6, 7, 8]], [[-0.1, -0.2, -0.3], [-5.0, -6.0, -7.0]]) == [
        Next(0, 0, 4),
        Next(1, 0, 5),
    ]
    assert search.advance([[EOT, 6, 7], [EOT, 8, 7]], [[-0.1, -1.0, -2.0], [-0.1, -3.0, -4.0]]) == []
    assert [c.tokens for c in search.candidates()] == [(1, 4), (1, 5)]
    assert [c.sum_logprob for c in search.candidates()] == pytest.approx([-1.2, -1.3])
    assert [c.token_logprobs for c in search.candidates()] == [pytest.approx((-1.0, -0.1)), pytest.approx((-1.0, -0.2))]


def test_greedy_stops_at_the_end():
    search = search_for(DecodeParams(), EOT, lambda token: True)
    assert isinstance(search, Sampling)
    assert search.advance([3], [-0.5]) == [Next(0, 0, 3)]
    assert search.advance([5], [-0.25]) == [Next(0, 0, 5)]
    assert search.advance([EOT], [-0.75]) == []
    best = best_candidate(search, None)
    assert best.tokens == (3, 5)
    assert best.sum_logprob == -1.5
    assert best.avg_logprob == -0.5  # two tokens and the end


def test_a_finished_row_adds_nothing():
    search = Sampling(3, EOT)
    assert search.advance([EOT, 4, 5], [-1.0, -2.0, -3.0]) == [Next(1, 1, 4), Next(2, 2, 5)]
    assert search.rows == [1, 2]
    assert search.advance([6, EOT], [-0.5, -0.25]) == [Next(1, 1, 6)]
    assert search.advance([EOT], [-1.0]) == []
    assert search.candidates() == [
        Candidate((), -1.0, ()), Candidate((4, 6), -3.5, (-2.0, -0.5)), Candidate((5,), -3.25, (-3.0,))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("params", "n_rows", "is_beam"),
    [
        (DecodeParams(), 1, False),
        (DecodeParams(n_candidates=5), 5, True),
        (DecodeParams(n_candidates=5, temperature=0.2), 5, False),
        (DecodeParams(temperature=0.2), 1, False),
    ],
)
def test_params_select_the_search(params: DecodeParams, n_rows: int, is_beam: bool):
    search = search_for(params, EOT, lambda token: True)
    assert isinstance(search, BeamSearch) == is_beam
    assert search.rows == list(range(n_rows))


@pytest.mark.parametrize(("penalty", "winner"), [(None, (1, 2, 3, 4)), (0.0, (1,)), (1.0, (1, 2, 3, 4))])
def test_the_length_penalty_ranks(penalty: float | None, winner: tuple[int, ...]):
    search = Sampling(2, EOT)
    search.texts, search.sum_logprobs = [(1,), (1, 2, 3, 4)], [-1.6, -2.0]
    search.token_logprobs = [(-1.6,), (-0.5,) * 4]
    assert best_candidate(search, penalty).tokens == winner


def test_an_empty_text_ranks_last():
    search = Sampling(2, EOT)
    search.texts, search.sum_logprobs = [(), (1,)], [-0.1, -50.0]
    assert best_candidate(search, None).tokens == (1,)
    assert Candidate((), -0.1).score(None) == -math.inf
