"""The GPU runner on the CPU, with the torch references of its kernels: it decides as the torch runner does.

`tests/kernels` tests the kernels in Triton's interpreter, `choral bench gpu` on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from choral.audio.mel import pad
from choral.engine import gpu_runner, gpu_state
from choral.engine.engine import Engine
from choral.engine.gpu_encode import GpuEncode
from choral.engine.gpu_graphs import GpuTimer, StepGraphs, sizes_up_to
from choral.engine.gpu_runner import GpuRunner
from choral.engine.hotword_trie import HotwordTrie
from choral.engine.steps import Finished, InProgress, Outcome
from choral.engine.window import Aligned, AlignParams, Decoded, DecodeParams, Window, WindowAudio
from choral.errors import UsageError, WindowFailed
from choral.model.checkpoint import Checkpoint
from choral.model.gpu_encoder import N_PADDED, GpuEncoder, GpuMel
from choral.model.gpu_layers import make_contiguous
from choral.model.weights import open_checkpoint
from choral.model.whisper import Whisper
from real_model import SETTINGS, Loaded, alone

Samples = npt.NDArray[np.float32]
SOON_S = 300
CPU = torch.device("cpu")
PARAMS = (
    DecodeParams(language="en"),
    DecodeParams(language="en", timestamps=False, prompt=(50, 60, 70, 80, 90)),
    DecodeParams(language="en", temperature=0.7, n_candidates=3),
    DecodeParams(language="en", n_candidates=4, patience=1.5),
    DecodeParams(language="en", max_tokens=5, suppress_blank=False),
    DecodeParams(language="en", temperature=1.0, seed=3),
    DecodeParams(language="en", suppress_tokens=(13, 11), length_penalty=0.5, max_initial_timestamp=None),
)


@pytest.fixture(scope="module")
def samples(speech: list[WindowAudio]) -> Samples:
    """ "And so, my fellow Americans": 11 seconds."""
    return speech[0].samples


@pytest.fixture(scope="module")
def engine(tiny: Loaded, tiny_checkpoint: Checkpoint) -> Iterator[Engine]:
    settings = replace(SETTINGS, slots=9)
    engine = Engine(GpuRunner(tiny_checkpoint, tiny.tokenizer, settings), settings)
    yield engine
    engine.close()


def windows(samples: Samples) -> list[Window[Decoded]]:
    cuts = [
        samples,
        samples[30_000:],
        samples[:90_000],
        samples[50_000:],
        samples[:60_000],
        samples[10_000:150_000],
        samples[20_000:120_000],
    ]
    return [Window(alone(np.ascontiguousarray(cut)), params) for cut, params in zip(cuts, PARAMS, strict=True)]


def results(engine: Engine, windows: Sequence[Window[Decoded]]) -> list[Decoded]:
    return [pending.result(SOON_S) for pending in [engine.submit(window) for window in windows]]


def test_all_params_match_the_torch_runner(engine: Engine, tiny: Loaded, samples: Samples) -> None:
    submitted = windows(samples)
    for mine, theirs in zip(results(engine, submitted), results(tiny.engine, submitted), strict=True):
        assert mine.tokens == theirs.tokens
        assert mine.avg_logprob == pytest.approx(theirs.avg_logprob, abs=1e-4)
        assert mine.no_speech_prob == pytest.approx(theirs.no_speech_prob, abs=1e-4)


def test_hotwords_match_the_torch_runner(engine: Engine, tiny: Loaded, samples: Samples) -> None:
    """Windows with different hotwords and one without share the batch."""
    terms = [tuple(tiny.tokenizer.encode(term)) for term in (" Americas", " fellow Armenians")]
    tries = [HotwordTrie.build([term], tiny.tokenizer.starts_word) for term in terms]
    plain = replace(PARAMS[0], max_tokens=20)
    boosted = [replace(plain, hotwords=trie, hotword_boost=12.0) for trie in tries]
    rare = tiny.tokenizer.encode("ührung")
    failing = [(*tiny.tokenizer.encode(word), *rare) for word in (" a", " the", " to", " of", " in", " that", " as")]
    false_starts = replace(plain, hotwords=HotwordTrie.build(failing, tiny.tokenizer.starts_word), hotword_boost=8.0)
    params = [*boosted, replace(boosted[0], n_candidates=3), plain, false_starts]
    submitted = [Window(alone(samples), each) for each in params]
    texts = []
    for mine, theirs in zip(results(engine, submitted), results(tiny.engine, submitted), strict=True):
        assert mine.tokens == theirs.tokens
        assert mine.avg_logprob == pytest.approx(theirs.avg_logprob, abs=1e-4)
        texts.append(tiny.tokenizer.decode(mine.tokens))
    assert ["Americas" in text for text in texts] == [True, False, True, False, False]
    assert ["Armenians" in text for text in texts] == [False, True, False, False, False]
    assert texts[4] == texts[3]  # hotwords that were begun and failed leave nothing


def test_gpu_results_do_not_depend_on_the_batch_or_slots(engine: Engine, samples: Samples) -> None:
    submitted = windows(samples)
    together = results(engine, submitted)
    one_by_one = [results(engine, [window])[0] for window in submitted]
    assert [each.tokens for each in together] == [each.tokens for each in one_by_one]


def test_observers_see_when_windows_have_tokens(engine: Engine, samples: Samples) -> None:
    outcomes: list[Outcome] = []
    engine.clear_cache()
    engine.observe(lambda record: outcomes.extend(record.outcomes))
    engine.submit(Window(alone(samples), PARAMS[0])).result(SOON_S)
    engine.observe(None)
    n_tokenless = outcomes.index(InProgress(has_tokens=True))
    assert outcomes[:n_tokenless] == [InProgress()] * 3  # encode, prefill, and a burst that is not read yet
    assert set(outcomes[n_tokenless:-1]) == {InProgress(has_tokens=True)}
    assert isinstance(outcomes[-1], Finished)


def test_costs_are_measured_by_the_runner(engine: Engine, samples: Samples) -> None:
    before = engine.stats.busy_s
    engine.submit(Window(alone(samples), PARAMS[1])).result(SOON_S)
    costs = engine._loop.runner.costs
    assert costs is engine._loop.scheduler.costs
    assert costs.prefill.is_known
    assert costs.decode.is_known
    assert engine.stats.busy_s > before


def test_known_texts_are_aligned(engine: Engine, tiny: Loaded, samples: Samples) -> None:
    text = tuple(tiny.tokenizer.encode(" And so my fellow Americans"))
    params = AlignParams(text_tokens=text, n_frames=550, language="en", task="transcribe")
    mine, theirs = (each.submit(Window(alone(samples), params)).result(SOON_S) for each in (engine, tiny.engine))
    assert isinstance(mine, Aligned)
    assert isinstance(theirs, Aligned)
    assert np.allclose(mine.scores, theirs.scores, atol=1e-3)


def test_a_bad_prompt_fails_alone(engine: Engine, samples: Samples) -> None:
    good, bad = Window(alone(samples), PARAMS[4]), Window(alone(samples), DecodeParams(language="en", prompt=(10**6,)))
    pending = [engine.submit(window) for window in (good, bad, good)]
    with pytest.raises(UsageError, match="no token"):
        pending[1].result(SOON_S)
    assert pending[0].result(SOON_S).tokens == pending[2].result(SOON_S).tokens


def test_a_window_with_nan_fails_alone(engine: Engine, samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = GpuEncode.__call__

    def with_nan(self: GpuEncode, audios: Sequence[WindowAudio]) -> list[torch.Tensor]:
        return [
            features * (torch.nan if audio.samples[0] == 1 else 1)
            for features, audio in zip(encode(self, audios), audios, strict=True)
        ]

    monkeypatch.setattr(GpuEncode, "__call__", with_nan)
    broken = samples.copy()
    broken[0] = 1
    pending = [engine.submit(Window(alone(cut), PARAMS[0])) for cut in (samples[:100_000], broken)]
    with pytest.raises(WindowFailed, match="NaN"):
        pending[1].result(SOON_S)
    assert pending[0].result(SOON_S).tokens


def test_fp8_decodes_the_sentence(tiny: Loaded, tiny_checkpoint: Checkpoint, samples: Samples, monkeypatch) -> None:
    monkeypatch.setattr(gpu_runner, "pick_compute_type", lambda *_: "fp8")
    runner = GpuRunner(tiny_checkpoint, tiny.tokenizer, replace(SETTINGS, slots=2))
    engine = Engine(runner, SETTINGS)
    try:
        tokens = results(engine, [Window(alone(samples), DecodeParams(language="en", timestamps=False))])[0].tokens
    finally:
        engine.close()
    text = tiny.tokenizer.decode(tokens)
    assert "ask not what your country can do for you" in text.replace(",", "")


@pytest.mark.parametrize(("lead", "n_frames", "peak"), [(0, 1100, None), (200, 700, 1.5), (0, 3000, None)])
def test_mel_spectrograms_match_the_cpu(samples: Samples, lead: int, n_frames: int, peak: float | None) -> None:
    audio = WindowAudio(samples, lead=lead, n_mel_frames=n_frames, mel_peak=peak)
    padded = np.empty((1, N_PADDED), np.float32)
    pad(audio.samples, lead, padded[0])
    peaks = torch.tensor([torch.nan if peak is None else peak])
    mel = GpuMel(80, CPU)(torch.from_numpy(padded), torch.tensor([n_frames]), peaks)
    assert np.abs(mel[0].T.numpy() - audio.log_mel(80)).max() < 1e-4


@torch.inference_mode()
def test_the_gpu_encoder_matches_the_plain_one(tiny_checkpoint: Checkpoint) -> None:
    network = Whisper.from_checkpoint(tiny_checkpoint, CPU, torch.float32)
    mel = torch.randn(2, tiny_checkpoint.dims.n_mels, 3000, generator=torch.Generator().manual_seed(0))
    plain = network.encoder(mel)
    assert torch.allclose(GpuEncoder(network.encoder)(mel.mT.contiguous()), plain, atol=2e-4)
    # The plain encoder still works, although the weights are shared now.
    assert torch.allclose(network.encoder(mel), plain, atol=1e-5)


@torch.inference_mode()
def test_transposed_weights_are_made_contiguous(tiny_en_pt: Path) -> None:
    """OpenAI's files have transposed weights, which the kernels cannot read."""
    network = Whisper.from_checkpoint(open_checkpoint(tiny_en_pt), CPU, torch.float32)
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    assert not all(weight.is_contiguous() for weight in network.parameters())
    make_contiguous(network)
    assert all(weight.is_contiguous() for weight in network.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())


def test_graph_sizes_need_little_padding() -> None:
    sizes = sizes_up_to(256)
    assert sizes[:4] == [1, 2, 4, 8]
    assert sizes[-1] == 256
    assert all(larger <= 2 * smaller for smaller, larger in pairwise(sizes))
    assert sizes_up_to(9)[-2:] == [8, 9]


@torch.inference_mode()
def test_rows_are_written_again_after_a_failed_write(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next window in the same slots would never advance."""
    runner = engine._loop.runner
    assert isinstance(runner, GpuRunner)
    runner._set_rows([(1, 1)])
    with monkeypatch.context() as patched:
        patched.setattr(gpu_state, "to_device", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            runner._set_rows([(4, 4)])
    runner._set_rows([(4, 4)])
    assert runner.rows[:, 0].tolist() == [4, 4]


def test_a_snapshot_that_failed_is_not_read(engine: Engine) -> None:
    """It may hold the results of other windows, which had the same slots."""
    runner = engine._loop.runner
    assert isinstance(runner, GpuRunner)
    snapshot = gpu_state.StateSnapshot(runner.state)
    snapshot._copies[1] = snapshot._copies[1][:, :1].expand(-1, 2)  # a copy of another shape
    with pytest.raises(RuntimeError):
        snapshot.take(7)
    assert snapshot.n_bursts < 0


def out_of_memory(*_: object) -> torch.Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory (simulated)")


def test_without_a_gpu_the_step_runs_eagerly() -> None:
    calls: list[int] = []

    def step(n: int) -> torch.Tensor:
        calls.append(n)
        return torch.tensor(n)

    graphs = StepGraphs(step, [1, 4], CPU)
    assert graphs.run(3, n_times=2) == 4
    assert calls == [4, 4]


def test_the_timer_reports_what_a_launch_took() -> None:
    measured: list[float] = []
    assert GpuTimer(CPU).run(lambda: time.sleep(0.02) or "done", measured.append) == "done"
    assert 0.02 <= measured[0] < 0.2
