"""The compute budget: work stays in proportion to the audio, whatever the options and the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from choral.audio.recording import Recording
from choral.engine.window import Decoded, DecodeParams, Window
from choral.errors import UsageError
from choral.longform.chain import Chain
from choral.longform.chain_types import ChainContext, Steps, WindowRange
from choral.longform.compute_budget import ComputeBudget, require_clips
from choral.longform.cuts import Clip, n_mel_frames
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from choral.options import TranscribeOptions

RATE = 16_000
TOKENIZER = Tokenizer.for_checkpoint(ModelDims(80, 1500, 384, 6, 4, 51864, 448, 384, 6, 4))
BEGIN = TOKENIZER.timestamp_begin
TEXT = tuple(TOKENIZER.encode(" some text"))


@dataclass
class ChainRun:
    """A chain whose windows all have the same text."""

    chain: Chain
    tokens: tuple[int, ...]
    params: list[DecodeParams] = field(default_factory=list)

    def run(self) -> None:
        steps = self.chain.run()
        result = None
        while True:
            try:
                window: Window[Decoded] = steps.send(result)
            except StopIteration:
                return
            assert isinstance(window.params, DecodeParams)
            self.params.append(window.params)
            result = Decoded(self.tokens, avg_logprob=-0.1, no_speech_prob=0.0)

    @property
    def n_sequences(self) -> int:
        return sum(params.n_candidates for params in self.params)


def run_chain(seconds: float, tokens: tuple[int, ...], **options: object) -> ChainRun:
    with Recording.open(np.ones(round(seconds * RATE), np.float32)) as recording:
        n_frames = n_mel_frames(recording)
        context = ChainContext(recording, TranscribeOptions.of(**options), TOKENIZER, "en", 448, cutter=None)
        run = ChainRun(Chain(context, [Clip(0, n_frames)], is_first=True, keep_tail=False), tokens)
        run.run()
    return run


CLOSED = (BEGIN, *TEXT, BEGIN + 25)


@pytest.mark.parametrize("seconds", [0.5, 30, 300])
def test_fallbacks_are_bounded_by_the_length_of_the_audio(seconds: float) -> None:
    run = run_chain(seconds, CLOSED, temperature=[1.0] * 16, best_of=64, compression_ratio_threshold=0.0)
    assert run.n_sequences <= 64 + 16 * seconds + 64 * (seconds // 30 + 1)
    assert run.chain.budget.is_exceeded
    assert "some text" in run.chain.segments[-1].text


@pytest.mark.parametrize("seconds", [0.5, 30, 300])
def test_default_options_are_not_limited(seconds: float) -> None:
    run = run_chain(seconds, CLOSED, compression_ratio_threshold=0.0)
    n_windows = -(-seconds // 30)
    assert (len(run.params), run.n_sequences) == (6 * n_windows, 26 * n_windows)
    assert not run.chain.budget.is_exceeded


def test_windows_that_hardly_advance_are_bounded() -> None:
    """Each window ends a segment after 20 ms, and begins another one: ordinarily decoded again from there."""
    run = run_chain(60, (BEGIN, *TEXT, BEGIN + 1, BEGIN + 1, *TEXT))
    assert len(run.params) <= 16 + 2 * 60 + 3
    assert run.chain.budget.is_exceeded
    assert run.chain.seek == 6000
    last = run.chain.segments[-1]
    assert (last.end, last.text) == (60.0, " some text")  # nothing is lost: the tail is kept


def test_windows_that_advance_by_seconds_are_not_limited() -> None:
    run = run_chain(60, (BEGIN, *TEXT, BEGIN + 50, BEGIN + 50, *TEXT))
    assert len(run.params) == 60
    assert not run.chain.budget.is_exceeded


def test_chain_ends_even_if_a_window_does_not_advance() -> None:
    class StuckChain(Chain):
        def window(self, window: WindowRange) -> Steps[None]:
            yield from ()

    advances: list[int] = []
    with Recording.open(np.ones(RATE, np.float32)) as recording:
        context = ChainContext(recording, TranscribeOptions(), TOKENIZER, "en", 448, cutter=None)
        on_advance: Callable[[int], None] = advances.append
        list(StuckChain(context, [Clip(0, 100)], is_first=True, keep_tail=False, on_advance=on_advance).run())
    assert sum(advances) == 100


def test_budget_grows_with_the_audio() -> None:
    for seconds, n_windows in ((0, 16), (10, 36)):
        budget = ComputeBudget(seconds * 100)
        for _ in range(n_windows):
            budget.count_window()
        assert not budget.needs_whole_windows
        budget.count_window()
        assert budget.needs_whole_windows


def test_require_clips() -> None:
    require_clips(26, 1000)
    require_clips(1, 0)
    with pytest.raises(UsageError, match=r"27 clips in 10 s of audio; it must have at most 26: join"):
        require_clips(27, 1000)
