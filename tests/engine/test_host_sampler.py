"""Token picks: the argmax, the top k, or a draw that depends on the row's seed only."""

from __future__ import annotations

import random

import pytest
import torch

from choral.engine.host_sampler import pick, top_k
from choral.engine.search import Draw
from choral.kernels.gumbel import gumbel

N_VOCAB = 1000


def logits(n_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n_rows, N_VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def test_temperature_zero_takes_the_argmax():
    rows = logits(20)
    picked = pick(rows, [Draw(0.0, seed, 3) for seed in range(20)])
    assert picked.tokens == rows.argmax(dim=-1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.0])
def test_log_probabilities_ignore_the_temperature(temperature: float):
    rows = logits(20)
    picked = pick(rows, [Draw(temperature, seed, 0) for seed in range(20)])
    expected = torch.log_softmax(rows.double(), dim=-1).gather(1, torch.tensor(picked.tokens)[:, None])[:, 0]
    assert picked.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_banned_token_is_never_drawn():
    rows = torch.full((500, N_VOCAB), -torch.inf)
    rows[:, [3, 700]] = 0.0
    picked = pick(rows, [Draw(1.0, seed, 0) for seed in range(500)])
    assert set(picked.tokens) == {3, 700}
    assert picked.logprobs == pytest.approx([-0.6931472] * 500, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("varied", ["seed", "step"])
def test_draws_follow_the_tempered_distribution(temperature: float, varied: str):
    """Over many seeds, and over the steps of one seed; each share may deviate by 4 standard deviations."""
    n = 20_000
    probabilities = torch.tensor([0.35, 0.25, 0.15, 0.1, 0.08, 0.04, 0.02, 0.01])
    draws = [Draw(temperature, i, 0) if varied == "seed" else Draw(temperature, 12345, i) for i in range(n)]
    picked = pick(probabilities.log().expand(n, -1), draws)
    shares = torch.bincount(torch.tensor(picked.tokens), minlength=8) / n
    expected = torch.softmax(probabilities.log() / temperature, 0)
    deviation = (expected * (1 - expected) / n).sqrt()
    assert ((shares - expected).abs() <= 4 * deviation).all(), (shares, expected)


def test_a_draw_depends_on_its_row_alone():
    rows = logits(30)
    draws = [Draw(random.Random(i).choice([0.0, 0.3, 1.0]), 2**61 + i // 2, i % 7) for i in range(30)]
    together = pick(rows, draws)
    order = random.Random(1).sample(range(30), 17)
    assert pick(rows[order], [draws[i] for i in order]).tokens == [together.tokens[i] for i in order]
    for i in range(30):
        alone = pick(rows[i : i + 1], draws[i : i + 1])
        assert alone.tokens == [together.tokens[i]]
        assert alone.logprobs == pytest.approx([together.logprobs[i]], abs=1e-6)


@pytest.mark.parametrize(("seed", "step"), [(8, 3), (7, 4), (2**62 + 7, 3)])
def test_another_seed_or_step_gives_other_noise(seed: int, step: int):
    same = gumbel(torch.tensor([7, 7, seed]), torch.tensor([3, 3, step]), N_VOCAB)
    assert torch.equal(same[0], same[1])
    assert (same[0] != same[2]).all()
    correlation = torch.corrcoef(same[1:])[0, 1]
    assert abs(correlation) < 0.12


def test_noise_is_finite_and_spread_as_gumbel_is():
    noise = gumbel(torch.arange(20), torch.zeros(20, dtype=torch.long), 50_000)
    assert torch.isfinite(noise).all()
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.std()) == pytest.approx(1.2825, abs=0.01)


def test_top_k_is_sorted():
    rows = logits(5)
    best = top_k(rows, 6)
    expected = torch.log_softmax(rows, dim=-1).sort(dim=-1, descending=True)
    assert best.tokens == expected.indices[:, :6].tolist()
    assert [v for row in best.logprobs for v in row] == pytest.approx(expected.values[:, :6].flatten().tolist())
