"""Greedy, sampling and beam search on a small table of logits, the last against openai-whisper's."""

import pytest
import torch
import whisper.decoding
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.engine.search import BeamSearch, Candidate, Sampling, best_candidate, search_for
from choral.engine.window import Decode

CPU = torch.device("cpu")
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
def test_beam_search_finds_what_the_reference_finds(beam_size, patience, seed, max_tokens):
    search = BeamSearch(beam_size, patience, EOT, CPU)
    for _ in range(max_tokens):
        if search.advance(table_logits(search.texts, seed)).is_complete:
            break
    found = sorted((c.tokens, round(c.sum_logprob, 4)) for c in search.candidates())
    wanted = sorted((c.tokens, round(c.sum_logprob, 4)) for c in oracle_beams(beam_size, patience, seed, max_tokens))
    assert found == wanted


def test_greedy_takes_the_likeliest_and_stops_at_the_end():
    search = search_for(Decode(), EOT, 0, CPU)
    for token in (3, 5, EOT):
        logits = torch.zeros(1, N_VOCAB)
        logits[0, token] = 4.0
        choice = search.advance(logits)
    assert choice.is_complete
    best = best_candidate(search, None)
    assert best.tokens == (3, 5)
    step = float(torch.log_softmax(torch.tensor([4.0] + [0.0] * 9), 0)[0])
    assert best.avg_logprob == pytest.approx(step, abs=1e-6)  # three steps over two tokens and the end


def test_a_row_that_has_ended_adds_nothing():
    search = Sampling(2, 1.0, EOT, 0, CPU)
    certain = torch.full((2, N_VOCAB), -100.0)
    certain[0, EOT], certain[1, 4] = 100.0, 100.0
    assert not search.advance(certain).is_complete
    certain[0, EOT], certain[0, 2], certain[1, 4], certain[1, EOT] = -100.0, 100.0, -100.0, 100.0
    assert search.advance(certain).is_complete
    assert [c.tokens for c in search.candidates()] == [(), (4,)]
    assert [c.sum_logprob for c in search.candidates()] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_the_same_seed_gives_the_same_sample_and_another_another():
    logits = torch.zeros(1, N_VOCAB)

    def draws(seed: int) -> list[int]:
        search = Sampling(1, 1.0, EOT, seed, CPU)
        return [int(search.draw(logits)[0]) for _ in range(40)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)


def test_samples_follow_the_tempered_distribution():
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]])).repeat(20_000, 1)
    for temperature in (0.5, 1.0):
        search = Sampling(20_000, temperature, EOT, 1, CPU)
        shares = torch.bincount(search.draw(logits), minlength=3) / 20_000
        expected = torch.softmax(logits[0] / temperature, 0)
        assert torch.allclose(shares, expected, atol=0.015)


@pytest.mark.parametrize(("penalty", "winner"), [(None, (1, 2, 3, 4)), (0.0, (1,))])
def test_the_length_penalty_ranks(penalty, winner):
    class Two:
        n_rows = 2

        def advance(self, logits):
            raise AssertionError("not used")

        def candidates(self):
            return [Candidate((1,), -1.0), Candidate((1, 2, 3, 4), -2.0)]

    assert best_candidate(Two(), penalty).tokens == winner
