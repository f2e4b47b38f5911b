"""The sampling kernels against the rules and the sampler of the host, over random states of many rows."""

from __future__ import annotations

import copy
import dataclasses
import random

import pytest
import torch
from torch import Tensor

from choral.engine.host_sampler import PickedToken, pick, top_k
from choral.engine.hotword_match import HotwordMatch
from choral.engine.hotword_tables import HotwordTables
from choral.engine.hotword_trie import HotwordTrie
from choral.engine.rules import Rules
from choral.engine.search import Draw
from choral.engine.window import DecodeParams
from choral.kernels import sample as module
from choral.kernels.decode_state import DecodeState, SamplingParams, Vocabulary
from choral.kernels.hotword_table import N_TRIED
from choral.kernels.sample import sample
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer

N_VOCAB, N_SLOTS, N_POSITIONS = 51_864, 9, 20
CPU = torch.device("cpu")
# Token; last token, last timestamp, numbers, node and returns before it; the tokens to try after it.
FORK = (777, 55, -1, 1, 5, 1, 0, 3, 888, 999, -1)
FORK_SCORES = (-3.0, -0.5, -0.25, -0.125, 0.0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    dims = ModelDims(80, 1500, 384, 6, 1, N_VOCAB, 448, 384, 6, 1)
    return Tokenizer.for_checkpoint(dims, None)


@pytest.fixture
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    (space,) = tokenizer.encode(" ")
    return Vocabulary(N_VOCAB, tokenizer.eot, space, tokenizer.timestamp_begin, torch.ones(N_VOCAB, dtype=torch.bool))


def works(seed: int) -> list[DecodeParams]:
    choices = torch.Generator().manual_seed(seed)

    def one_of(*values: object) -> object:
        return values[int(torch.randint(len(values), (), generator=choices))]

    return [
        DecodeParams(
            timestamps=one_of(True, True, False),  # type: ignore[arg-type]
            temperature=one_of(0.0, 0.0, 0.4, 1.0),  # type: ignore[arg-type]
            suppress_tokens=one_of((), (1, 2, 50_257), tuple(range(0, 5000, 7))),  # type: ignore[arg-type]
            suppress_blank=one_of(True, False),  # type: ignore[arg-type]
            max_initial_timestamp=one_of(1.0, None, 0.0),  # type: ignore[arg-type]
        )
        for _ in range(N_SLOTS)
    ]


def texts(seed: int, begin: int) -> list[list[int]]:
    """A text for each slot, of varying length: text tokens, single timestamps and rising pairs of timestamps."""
    choices = torch.Generator().manual_seed(seed)
    made = []
    for slot in range(N_SLOTS):
        time, text = begin + slot, []
        for _ in range(slot % 6):
            kind = int(torch.randint(3, (), generator=choices))
            text += [[100 + slot], [time], [time, time]][kind]
            time += 3
        made.append(text)
    return made


def state(
    tokenizer: Tokenizer, wants: list[DecodeParams], so_far: list[list[int]]
) -> tuple[SamplingParams, DecodeState]:
    def numbers(*values: int) -> Tensor:
        return torch.tensor(values)

    begin = tokenizer.timestamp_begin
    banned_tokens = torch.zeros(N_SLOTS, N_VOCAB, dtype=torch.bool)
    for slot, work in enumerate(wants):
        banned_tokens[slot, list(work.suppress_tokens)] = True
        banned_tokens[slot, tokenizer.no_timestamps] |= work.timestamps
    latest = [begin + (1501 if w.max_initial_timestamp is None else round(w.max_initial_timestamp * 50)) for w in wants]
    wanted = SamplingParams(
        suppress_blank=numbers(*(work.suppress_blank for work in wants)),
        banned_tokens=banned_tokens,
        timestamps=numbers(*(work.timestamps for work in wants)),
        max_first_timestamp=numbers(*latest),
        temperatures=torch.tensor([work.temperature for work in wants]),
        seeds=numbers(*(2**61 + 17 * slot for slot in range(N_SLOTS))),
        max_tokens=numbers(*(200, 200, 200, 200, 200, 6, 1, 200, 200)),
        is_host_sampled=torch.zeros(N_SLOTS, dtype=torch.long),
        hotwords=torch.zeros(N_SLOTS, dtype=torch.long),
        hotword_boosts=torch.zeros(N_SLOTS),
        hotword_tables={},
    )
    times = [[token for token in text if token >= begin] for text in so_far]
    recent = (
        torch.tensor([[*text[-1:], -1][0] for text in so_far]),
        torch.tensor([[*text[-2:-1], -1][0] for text in so_far]),
    )
    written = torch.zeros(N_SLOTS, N_POSITIONS, dtype=torch.int32)
    for slot, text in enumerate(so_far):
        written[slot, : len(text)] = torch.tensor(text, dtype=torch.int32)
    n_text = numbers(*map(len, so_far))
    progress = DecodeState(
        recent=torch.stack([*recent, torch.tensor([[*own[-1:], -1][0] for own in times]), n_text]),
        lengths=n_text + 4,
        next_tokens=torch.zeros(N_SLOTS, dtype=torch.long),
        hotword_nodes=torch.zeros(N_SLOTS, dtype=torch.long),
        forks=torch.tensor([[-1] * N_SLOTS, *[[0] * N_SLOTS] * 7, *[[-1] * N_SLOTS] * 3]),
        fork_scores=torch.zeros(5, N_SLOTS),
        texts=written,
        logprobs=torch.zeros(N_SLOTS, N_POSITIONS),
        n_text=n_text.clone(),
        sum_logprobs=torch.zeros(N_SLOTS),
        is_done=numbers(0, 0, 0, 0, 0, 0, 0, 0, 1),
        prompt_ends=torch.zeros(N_SLOTS, dtype=torch.long),
        drafts=torch.zeros(2, N_SLOTS, dtype=torch.long),
        is_paused=torch.zeros(N_SLOTS, dtype=torch.long),
        n_compared=torch.zeros(N_SLOTS, dtype=torch.long),
        n_accepted=torch.zeros(N_SLOTS, dtype=torch.long),
        forced_acceptance=torch.tensor([-1]),
    )
    return wanted, progress


def add_hotwords(
    seed: int, so_far: list[list[int]], wanted: SamplingParams, progress: DecodeState, device: torch.device
) -> list[HotwordMatch | None]:
    """Hotwords for every other slot: more first tokens than a block has, and some that continue the slot's text."""
    choices = random.Random(seed)
    matches: list[HotwordMatch | None] = [None] * N_SLOTS
    for slot in range(0, N_SLOTS, 2):
        if wanted.temperatures[slot] > 0:
            continue  # samples are not boosted
        terms = [tuple(choices.sample(range(50_000), 2)) for _ in range(700)]
        terms += [(100 + slot, token) for token in choices.sample(range(50_000), 300)]
        terms += [(100 + slot,)] * (slot % 4 == 2)
        match = HotwordMatch(HotwordTrie.build(terms, always), choices.choice((1.5, 6.0)), always)
        for token in so_far[slot]:
            match = match.after(token)
        table = HotwordTables(device).table(match.trie)
        wanted.hotwords[slot], wanted.hotword_boosts[slot] = table.data_ptr(), match.boost
        wanted.hotword_tables[slot] = table  # type: ignore[index]
        progress.hotword_nodes[slot] = match.node
        if match.node:
            progress.forks[:, slot] = torch.tensor(FORK)
            progress.fork_scores[:, slot] = torch.tensor(FORK_SCORES)
        matches[slot] = match
    return matches


def always(token: int) -> bool:
    return True


def logits_of(seed: int, begin: int) -> Tensor:
    """Some rows prefer timestamps, some text, some the end."""
    logits = torch.randn(N_SLOTS, N_VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    logits[::3, begin:] += 4
    logits[1::4, 50_256] += 12
    return logits


@pytest.mark.parametrize("seed", range(6))
def test_sampled_tokens_follow_the_rules(
    seed: int, tokenizer: Tokenizer, vocabulary: Vocabulary, device: torch.device
) -> None:
    wants, so_far = works(seed), texts(seed, tokenizer.timestamp_begin)
    wanted, progress = state(tokenizer, wants, so_far)
    matches = add_hotwords(seed, so_far, wanted, progress, device)
    logits = logits_of(seed, tokenizer.timestamp_begin)
    rows = torch.tensor([3, 0, 5, 1, 8, 7, 2, 4, 6]).int()
    logit_rows = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 7]).int()  # two look at the same
    before = copy.deepcopy(progress)

    rules = Rules(tokenizer, N_VOCAB, N_SLOTS, CPU)
    for slot, work in enumerate(wants):
        rules.begin([slot], work)
        for token in so_far[slot]:
            rules.history.set(torch.tensor([slot]), rules.history.extended(torch.tensor([slot]), torch.tensor([token])))
    expected = logits[logit_rows.long()].clone()
    rules.apply(expected, rows.long())
    draws = [Draw(wants[slot].temperature, 2**61 + 17 * slot, len(so_far[slot])) for slot in rows.tolist()]
    picked = pick(expected, draws)
    boosted = HotwordTables(CPU).boosted(expected, [matches[slot] for slot in rows.tolist()])
    preferred = [[picked.at(row)] for row in range(N_SLOTS)]
    if boosted is not None:
        top = top_k(expected, N_TRIED, boosted)
        preferred = [top.at(row) for row in range(N_SLOTS)]

    moved = [dataclasses.replace(each, **{name: value.to(device) for name, value in vars(each).items()
                                          if isinstance(value, Tensor)}) for each in (wanted, progress)]  # fmt: skip
    sample(logits.to(device), logit_rows.to(device), rows.to(device), *moved, vocabulary)  # type: ignore[arg-type]
    progress = dataclasses.replace(
        moved[1], **{f.name: getattr(moved[1], f.name).cpu() for f in dataclasses.fields(progress)}
    )  # type: ignore[assignment]
    wanted = dataclasses.replace(wanted, hotword_tables={s: t.cpu() for s, t in wanted.hotword_tables.items()})
    module.reference(logits, logit_rows, rows, wanted, plain := copy.deepcopy(before), vocabulary)

    n_forks = 0
    for row, slot in enumerate(rows.tolist()):
        n_before, match, plain_token = len(so_far[slot]), matches[slot], picked.tokens[row]
        chosen = picked.at(row) if match is None else preferred[row][0]
        token, logprob = chosen.token, chosen.logprob
        if match is not None and slot != 8 and match.node and match.fails(token):
            for result in (progress, plain):
                check_returned(result, slot, match)
            continue
        for result in (progress, plain):
            if slot == 8:
                assert all(torch.equal(a[..., 8] if a.ndim == 1 else a[8], b[..., 8] if b.ndim == 1 else b[8])
                           for a, b in ((result.lengths, before.lengths), (result.texts, before.texts)))  # fmt: skip
                continue
            assert result.next_tokens[slot] == token
            assert result.sum_logprobs[slot] == pytest.approx(logprob, abs=2e-4)
            is_end = token == vocabulary.eot
            assert result.n_text[slot] == n_before + (not is_end)
            assert result.texts[slot, :n_before].tolist() == so_far[slot]
            assert is_end or result.texts[slot, n_before] == token
            assert is_end or result.logprobs[slot, n_before] == pytest.approx(logprob, abs=2e-4)
            assert result.recent[0, slot] == token
            after = None if match is None else match.after(token)
            assert result.hotword_nodes[slot] == (0 if after is None else after.node)
            has_fork = after is not None and match is not None and match.node and after.node and not after.is_beginning
            others = [] if token == plain_token else [*others_of(preferred[row], plain_token), picked.at(row)]
            n_forks += not has_fork and len(others)
            assert result.forks[0, slot] == (FORK[0] if has_fork else [*(other.token for other in others), -1][0])
            if not has_fork and others:
                assert result.forks[1:6, slot].tolist() == [
                    *before.recent[[0, 2, 3], slot].tolist(), before.lengths[slot], n_before]  # fmt: skip
                queue = [*(other.token for other in others[1:]), *[-1] * (N_TRIED - len(others))]
                assert result.forks[8:, slot].tolist() == queue
                expected_scores = [other.logprob for other in others]
                assert result.fork_scores[1 : 1 + len(others), slot].tolist() == pytest.approx(
                    expected_scores, abs=2e-4
                )
            assert result.recent[1, slot] == (so_far[slot][-1] if so_far[slot] else -1)
            assert result.recent[3, slot] == n_before + 1
            assert result.lengths[slot] == before.lengths[slot] + 1
            is_over = is_end or before.lengths[slot] >= N_POSITIONS or n_before + 1 >= wanted.max_tokens[slot]
            assert bool(result.is_done[slot]) == bool(is_over)
    assert torch.equal(progress.recent, plain.recent)
    assert torch.equal(progress.forks, plain.forks)
    assert n_forks or seed not in (1, 2)  # these have several tokens to try


def others_of(preferred: list[PickedToken], plain_token: int) -> list[PickedToken]:
    """The tokens to try after the best one: those that are better than the model's own."""
    tokens = [each.token for each in preferred]
    return preferred[1 : tokens.index(plain_token)] if plain_token in tokens else preferred[1:]


def check_returned(result: DecodeState, slot: int, match: HotwordMatch) -> None:
    """The slot has the other token of its fork, in the state before it."""
    token, last, time, n_sampled, length, n_text, _, n_returns, *queue = FORK
    assert result.forks[[0, 7], slot].tolist() == [queue[0], n_returns + 1]
    assert result.forks[8:, slot].tolist() == [*queue[1:], -1]
    assert result.fork_scores[:4, slot].tolist() == [FORK_SCORES[0], *FORK_SCORES[2:]]
    assert result.recent[:, slot].tolist() == [token, last, time, n_sampled + 1]
    assert (result.next_tokens[slot], result.lengths[slot], result.n_text[slot]) == (token, length + 1, n_text + 1)
    assert result.texts[slot, n_text] == token
    assert result.sum_logprobs[slot] == -3.5
    assert result.hotword_nodes[slot] == (match.trie.child(0, token) or 0)


def test_nan_logits_reach_the_log_probability(
    tokenizer: Tokenizer, vocabulary: Vocabulary, device: torch.device
) -> None:
    wanted, progress = state(tokenizer, works(0), texts(0, tokenizer.timestamp_begin))
    logits = logits_of(0, tokenizer.timestamp_begin)
    logits[2, 17] = torch.nan
    rows = torch.arange(8).int()
    sample(logits, rows, rows, wanted, progress, vocabulary)
    is_nan = progress.sum_logprobs.isnan().tolist()
    assert is_nan[2]
    assert sum(is_nan) == 1


def test_drafted_tokens_are_accepted_until_one_differs(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Three logits for each row and two drafted tokens: the row advances as if it had been sampled step by step."""
    so_far = [[100 + slot] for slot in range(N_SLOTS)]
    wanted, progress = state(tokenizer, [DecodeParams(language="en", timestamps=False)] * N_SLOTS, so_far)
    wanted.max_tokens.fill_(200)
    logits = torch.randn(3 * N_SLOTS, N_VOCAB, generator=torch.Generator().manual_seed(3))
    logits[:, tokenizer.eot] = -100.0
    logits[3 * 2 + 1, tokenizer.eot] = 100.0  # slot 2 ends with its second token
    rows = torch.arange(N_SLOTS).int()
    expected = copy.deepcopy(progress)
    sampled: list[Tensor] = []
    for token in range(3):
        module.reference(logits, rows * 3 + token, rows, wanted, expected, vocabulary)
        sampled.append(expected.next_tokens.clone())
    progress.drafts[0], progress.drafts[1] = sampled[0], sampled[1]
    progress.drafts[0, :2] += 1  # slots 0 and 1 disagree at once, slot 3 with the second token
    progress.drafts[1, 3] += 1
    plain = copy.deepcopy(progress)
    sample(logits, rows, rows, wanted, progress, vocabulary, n_tokens=3)
    for token in range(3):
        module.reference(logits, rows, rows, wanted, plain, vocabulary, n_tokens=3, token=token)
    n_sampled = [1, 1, 2, 2, 3, 3, 3, 3, 0]  # the last slot is done from the start
    for result in (progress, plain):
        assert (result.recent[3] - 1).tolist() == n_sampled
        assert result.n_compared.tolist() == [1, 1, 2, 2, 2, 2, 2, 2, 0]
        assert result.n_accepted.tolist() == [0, 0, 2, 1, 2, 2, 2, 2, 0]
        for slot, n in enumerate(n_sampled[:-1]):
            assert result.next_tokens[slot] == sampled[n - 1][slot]
    assert torch.equal(progress.texts[4:8], expected.texts[4:8])
    assert torch.allclose(progress.sum_logprobs[4:8], expected.sum_logprobs[4:8], atol=1e-3)
