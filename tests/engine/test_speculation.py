"""When drafting pays, by acceptance and measured costs; and that its tokens are those without a draft."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from choral.bench.random_model import RandomTensors, random_checkpoint
from choral.engine.engine import Engine
from choral.engine.factory import make_engine
from choral.engine.gpu_runner import GpuRunner
from choral.engine.hotword_trie import HotwordTrie
from choral.engine.speculation import RETRY_STEPS, SpeculationPolicy
from choral.engine.window import DecodeParams, Window, WindowAudio
from choral.errors import UsageError
from choral.model.checkpoint import Checkpoint
from real_model import SETTINGS, Loaded

HOTWORDS = HotwordTrie.build([(1757, 5891), (262, 1181)], lambda token: True)
BEAMS = DecodeParams(language="en", n_candidates=3)
PARAMS = (
    DecodeParams(language="en"),
    DecodeParams(language="en", timestamps=False, prompt=(50, 60, 70, 80, 90), token_logprobs=True),
    DecodeParams(language="en", temperature=0.7, n_candidates=3),
    BEAMS,
    DecodeParams(language="en", max_tokens=5, suppress_blank=False),
    DecodeParams(language="en", temperature=1.0, seed=3),
    DecodeParams(language="en", suppress_tokens=(13, 11), max_initial_timestamp=None),
    DecodeParams(language="en", hotwords=HOTWORDS, hotword_boost=3.0),
)


def policy_with(acceptance: float, plain_s: float, draft_s: float) -> SpeculationPolicy:
    policy = SpeculationPolicy(4)
    policy.learn(100_000, round(100_000 * acceptance))
    policy.plain_cost.learn(1, plain_s)
    policy.draft_cost.learn(1, draft_s)
    return policy


def test_drafts_are_used_where_they_pay() -> None:
    assert policy_with(0.8, 1.0, 1.5).next_drafts(1) == 4  # 3.4 tokens in 1.5 times the time
    assert policy_with(0.1, 1.0, 1.5).next_drafts(1) == 0
    assert policy_with(0.8, 1.0, 1.5).tokens_per_step == pytest.approx(3.36, abs=0.01)
    assert SpeculationPolicy(0).next_drafts(1) == 0


def test_drafting_is_tried_again_after_a_while() -> None:
    policy = policy_with(0.0, 1.0, 1.5)
    tries = [policy.next_drafts(1) for _ in range(2 * RETRY_STEPS + 2)]
    assert tries.count(4) == 2
    assert policy.acceptance < 0.01


@pytest.fixture(scope="module", params=["itself", pytest.param("random", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, tiny: Loaded, tiny_checkpoint: Checkpoint) -> Iterator[Engine]:
    """Drafted by the model itself, which is always right, or by random weights, which never are."""
    draft = (
        tiny_checkpoint
        if request.param == "itself"
        else replace(tiny_checkpoint, tensors=RandomTensors(tiny_checkpoint.dims))
    )
    settings = replace(SETTINGS, slots=9)
    runner = GpuRunner(tiny_checkpoint, tiny.tokenizer, settings, draft)
    runner.speculation.next_drafts = lambda n_rows: 4  # type: ignore[method-assign]
    learned: list[tuple[int, int]] = []
    runner.speculation.learn = lambda *counts: learned.append(counts)  # type: ignore[method-assign, assignment]
    engine = Engine(runner, settings)
    yield engine
    engine.close()
    n_compared, n_accepted = map(sum, zip(*learned, strict=True))
    assert n_compared > 40
    assert n_accepted > 0.95 * n_compared if request.param == "itself" else n_accepted < 0.05 * n_compared


def test_tokens_are_those_without_a_draft(engine: Engine, tiny: Loaded, speech: list[WindowAudio]) -> None:
    def check(*choices: DecodeParams) -> None:
        windows = [Window(speech[index % 2], params) for index, params in enumerate(choices)]
        pending = [engine.submit(window) for window in windows]
        expected = [tiny.engine.submit(window) for window in windows]
        for window, drafted, plain in zip(windows, pending, expected, strict=True):
            with_draft, without = drafted.result(300), plain.result(300)
            assert with_draft.tokens == without.tokens, window.params
            assert with_draft.avg_logprob == pytest.approx(without.avg_logprob, abs=1e-3)

    check(*(params for params in PARAMS if params is not BEAMS))
    check(BEAMS, PARAMS[0])  # steps with beams draft nothing, and the window beside them catches up


def test_drafts_need_a_gpu_and_the_same_vocabulary(tiny: Loaded, tiny_checkpoint: Checkpoint) -> None:
    with pytest.raises(UsageError, match="need an NVIDIA GPU"):
        make_engine(tiny_checkpoint, tiny.tokenizer, replace(SETTINGS, draft="tiny.en"))
    with pytest.raises(UsageError, match="same family"):
        GpuRunner(tiny_checkpoint, tiny.tokenizer, SETTINGS, random_checkpoint("large-v3-turbo"))
