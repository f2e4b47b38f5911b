"""Speed with a draft model against the share of its tokens that are accepted, which is forced: weights are random.

The draft has two decoder layers over the encoder's own features, as distilled models have.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from choral.bench.gpu_load import SATURATED_WINDOWS, GpuLoadGenerator
from choral.bench.random_model import RandomTensors, random_checkpoint
from choral.config import ComputeType, EngineSettings
from choral.engine.engine import Engine
from choral.engine.gpu_runner import GpuRunner
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer

DRAFT_LAYERS = 2
ACCEPTANCE_PERCENTS = (0, 60, 70, 80)
N_CALLERS = 50
N_RUNS = 2


@dataclass(frozen=True)
class SpeculationResult:
    shape: str
    compute_type: str
    acceptance_percent: int | None  # None: without a draft
    tokens_per_step: float
    single_ms: float
    requests_per_s: float  # of 50 callers
    windows_per_s: float  # saturated


def random_draft(target: Checkpoint) -> Checkpoint:
    """The first layers of the random decoder, and the same encoder."""
    dims = replace(target.dims, n_text_layer=DRAFT_LAYERS)
    return replace(target, dims=dims, tensors=RandomTensors(dims))


def measure_speculation(
    shape: str,
    compute_type: ComputeType,
    device: str,
    percents: Sequence[int] = ACCEPTANCE_PERCENTS,
    on_progress: Callable[[str], None] = lambda step: None,
) -> list[SpeculationResult]:
    checkpoint = random_checkpoint(shape)
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims)
    settings = EngineSettings(device=device, compute_type=compute_type, warm_up=True)
    runner = GpuRunner(checkpoint, tokenizer, settings, random_draft(checkpoint))
    policy, n_drafts = runner.speculation, settings.draft_tokens
    engine = Engine(runner, settings)
    results = []
    try:
        for percent in (None, *percents):
            on_progress("without a draft" if percent is None else f"{percent} % accepted")
            with torch.inference_mode():
                runner.state.decode.forced_acceptance.fill_(-1 if percent is None else percent)
            n_used = 0 if percent is None else n_drafts
            policy.next_drafts = lambda n_rows, n_used=n_used: n_used  # type: ignore[method-assign, misc]
            expected = sum((percent / 100) ** n for n in range(n_drafts + 1)) if percent is not None else 1.0
            results.append(SpeculationResult(shape, compute_type, percent, expected, *_measure(engine, tokenizer)))
    finally:
        engine.close()
    del engine, runner
    gc.collect()
    torch.cuda.empty_cache()
    return results


def _measure(engine: Engine, tokenizer: Tokenizer) -> tuple[float, float, float]:
    load = GpuLoadGenerator(engine, tokenizer)
    single_s = median([load.run_windows(1) for _ in range(2 + N_RUNS)][2:])
    load.run_callers(N_CALLERS)
    requests_per_s = median(load.run_callers(N_CALLERS).requests_per_s for _ in range(N_RUNS))
    windows_per_s = median(SATURATED_WINDOWS / load.run_windows(SATURATED_WINDOWS) for _ in range(N_RUNS))
    return single_s * 1e3, requests_per_s, windows_per_s
