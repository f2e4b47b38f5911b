"""Runs windows on a GPU, continuously, and next to never waits for it.

Rules, choice and what follows from it stay on the device: a burst of a few steps is launched as CUDA graphs, and while
it runs the host reads what the burst before it decided. A row that has ended does nothing until the host has seen it.
Beams compete on the host, which then looks at every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from choral.config import EngineSettings
from choral.engine.align_and_detect import AlignAndDetect
from choral.engine.decoding import Decoding, not_numbers
from choral.engine.gpu_encode import GpuEncode
from choral.engine.gpu_graphs import StepGraphs, sizes_up_to
from choral.engine.gpu_prefill import GpuPrefill
from choral.engine.gpu_state import NO_SPEECH, GpuState, PrefillRow, StateSnapshot
from choral.engine.gpu_timer import GpuTimer
from choral.engine.host_sampler import HostSampler
from choral.engine.prompt import initial_tokens
from choral.engine.runner import PrefillInput
from choral.engine.steps import Failed, Finished, InProgress, Outcome
from choral.engine.torch_device import DTYPES, capacity_of, pick_compute_type, pick_device
from choral.engine.window import Decoded, DecodeParams, Params, WindowAudio
from choral.kernels.fp8 import FP8
from choral.kernels.sample import sample
from choral.model.checkpoint import Checkpoint
from choral.model.gpu_decoder import GpuDecoder
from choral.model.gpu_encoder import GpuEncoder
from choral.model.gpu_layers import make_contiguous
from choral.model.kv_cache import GpuKVCache
from choral.model.tokenizer import Tokenizer
from choral.model.whisper import Whisper

ENCODED_TOGETHER = 8  # windows from which on the encoder is about as fast as it gets
BURST_S = 0.004  # what is launched before the host looks again, as far as that is more than one step
MOST_STEPS = 8


@dataclass(frozen=True, eq=False)
class Running:
    """A window in its places; beams have a decoding on the host."""

    slots: tuple[int, ...]
    params: DecodeParams
    is_watched: bool
    first_burst: int
    decoding: Decoding | None = None


class GpuRunner:
    name = "torch"

    @torch.inference_mode()
    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> None:
        self._device = device = pick_device(settings.device)
        self.device, self.compute_type = str(device), pick_compute_type(settings.compute_type, device)
        dtype, dims, fp8 = DTYPES[self.compute_type], checkpoint.dims, self.compute_type == "fp8"
        self._tokenizer, self._dims = tokenizer, dims
        with self._on_device():
            network = Whisper.from_checkpoint(checkpoint, device, dtype)
            make_contiguous(network)
            self._decoder = GpuDecoder(network.decoder, fp8=fp8)
            self._align_and_detect = AlignAndDetect(
                network.decoder, tokenizer, checkpoint.alignment_heads, self.compute_type
            )
            n_encoded = max(1, settings.encoder_budget // dims.n_audio_ctx)
            self.hearing = GpuEncode(GpuEncoder(network.encoder, fp8=fp8), dims.n_mels, n_encoded, device)
            capacity = capacity_of(dims, device, dtype, settings.slots, FP8 if fp8 else None)
            self.capacity = replace(capacity, n_lanes=ENCODED_TOGETHER)
            n_slots = self.capacity.n_slots
            self._memory = GpuKVCache(dims, n_slots, device, dtype, fp8=fp8)
            self.state = GpuState(tokenizer, dims, n_slots, device)
            self._prompts = GpuPrefill(self._decoder, tokenizer, dims, self._memory, self.state)
            self._host_sampler = HostSampler(tokenizer, dims, self._memory, n_slots + 1, self.compute_type)
            self.rows = torch.full((2, n_slots), n_slots, dtype=torch.int32, device=device)  # slots, audio slots
            self._row_list: list[tuple[int, int]] = []
            self._all_rows = torch.arange(n_slots, dtype=torch.int32, device=device)
            self.graphs = StepGraphs(self._step, sizes_up_to(n_slots), device)
        self._running: dict[int, Running] = {}  # by their first slot, where their audio lies
        self._n_bursts = 0
        self._reports = [StateSnapshot(self.state), StateSnapshot(self.state)]
        self._times = GpuTimer(device)
        self.took_s: float | None = None

    def _on_device(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()

    def _step(self, n_rows: int) -> Tensor:
        """One token further for the first rows: all that a graph holds."""
        progress = self.state.progress
        slots, audio_slots = self.rows[:, :n_rows]
        logits = self._decoder.step(progress, slots, audio_slots, self._memory)
        sample(logits, self._all_rows[:n_rows], slots, self.state.wanted, progress, self.state.vocabulary)
        return logits

    @torch.inference_mode()
    def encode(self, audios: Sequence[WindowAudio]) -> Sequence[Tensor]:  # each [frames, state]
        with self._on_device():
            features = self._times.run("encode", len(audios), lambda: self.hearing(audios))
        self.took_s = self._times.seconds("encode", len(audios))
        return features

    @torch.inference_mode()
    def prefill(self, starts: Sequence[PrefillInput]) -> Sequence[Outcome]:
        prompts = [initial_tokens(start.params, self._tokenizer, self._dims.n_text_ctx) for start in starts]
        with self._on_device():
            at_start, at_end = self._times.run("prefill", len(starts), lambda: self._prompts(starts, prompts))
            outcomes = self._begin(starts, prompts, at_start, at_end)
        self.took_s = self._times.seconds("prefill", len(starts))
        return outcomes

    def _begin(
        self, starts: Sequence[PrefillInput], prompts: Sequence[list[int]], at_start: Tensor, at_end: Tensor
    ) -> list[Outcome]:
        state = self.state
        no_speech = torch.softmax(at_start, dim=-1)[:, self._tokenizer.no_speech]
        lengths = [len(prompt) for prompt in prompts]
        is_host_sampled = [is_beam_search(start.params) for start in starts]
        state.begin([PrefillRow(*each) for each in zip(starts, lengths, is_host_sampled, strict=True)])
        slots = [slot for start in starts for slot in start.slots]
        self._copy_prompts(starts, max(lengths))
        places = state.moved(torch.tensor(slots, dtype=torch.int32))
        rows = [row for row, start in enumerate(starts) for _ in start.slots]
        logit_rows = state.moved(torch.tensor(rows, dtype=torch.int32))
        state.others[NO_SPEECH, places.long()] = no_speech[logit_rows.long()]
        sample(at_end, logit_rows, places, state.wanted, state.progress, state.vocabulary)
        return self._begun(starts, lengths, no_speech, at_end)

    def _copy_prompts(self, starts: Sequence[PrefillInput], n_positions: int) -> None:
        """Samples go on from the one prompt of their window; who decides on beams sees to theirs."""
        sampled = [start for start in starts if not is_beam_search(start.params)]
        pairs = [(start.slots[0], slot) for start in sampled for slot in start.slots[1:]]
        if pairs:
            sources, targets = self.state.moved(torch.tensor(pairs)).t()
            self._memory.copy(sources, targets, n_positions)

    def _begun(
        self, starts: Sequence[PrefillInput], lengths: Sequence[int], no_speech: Tensor, logits: Tensor
    ) -> list[Outcome]:
        beams = [row for row, start in enumerate(starts) if is_beam_search(start.params)]
        decodings = {
            row: self._host_sampler.begin(starts[row], lengths[row], prob)
            for row, prob in zip(beams, no_speech[beams].tolist() if beams else [], strict=True)
        }
        for row, start in enumerate(starts):
            running = Running(start.slots, start.params, start.is_watched, self._n_bursts + 1, decodings.get(row))
            self._running[start.slots[0]] = running
        outcomes: list[Outcome] = [InProgress(None)] * len(starts)
        if beams:
            counts = [len(starts[row].slots) for row in beams]
            rows = [row for row, count in zip(beams, counts, strict=True) for _ in range(count)]
            chosen = self._choose_on_host(list(decodings.values()), logits[rows])
            for row, outcome in zip(beams, chosen, strict=True):
                outcomes[row] = outcome
        return outcomes

    def _choose_on_host(self, decodings: Sequence[Decoding], logits: Tensor) -> list[Outcome]:
        outcomes = self._host_sampler.sample(decodings, logits)
        slots = [slot for decoding in decodings for slot in decoding.slots]
        places = self.state.moved(torch.tensor(slots))
        lengths = [decoding.length for decoding in decodings for _ in decoding.slots]
        self.state.progress.lengths[places] = self.state.moved(torch.tensor(lengths))
        self.state.progress.next_tokens[places] = self._host_sampler.next_tokens[places]
        return outcomes

    @torch.inference_mode()
    def decode(self, windows: Sequence[tuple[int, ...]]) -> Sequence[Outcome]:
        """Launches a burst for these, then tells what was decided before it."""
        running = [self._running[slots[0]] for slots in windows]
        beams = [each for each in running if each.decoding is not None]
        with self._on_device():
            self._set_rows([(slot, each.slots[0]) for each in running for slot in each.slots])
            self._n_bursts += 1
            logits = self._launch(1 if beams else MOST_STEPS)
            newest, before = self._reports[self._n_bursts % 2], self._reports[(self._n_bursts + 1) % 2]
            newest.take(self._n_bursts)
            chosen = self._beams_advance(running, logits) if beams else []
            before.wait()
        by_slot = {each.slots[0]: outcome for each, outcome in zip(beams, chosen, strict=True)}
        return [by_slot.get(each.slots[0]) or self._outcome(each, before) for each in running]

    def _launch(self, most_steps: int) -> Tensor:
        """As many steps as take about `BURST_S`, by what is known of their size."""
        n_rows = len(self._row_list)
        step_s = self._times.seconds("step", n_rows)
        n_steps = max(1, min(most_steps, round(BURST_S / step_s))) if step_s else 1
        self.took_s = step_s and step_s * n_steps
        return self._times.run("step", n_rows, lambda: self.graphs.run(n_rows, n_steps), n_steps)

    def _set_rows(self, rows: list[tuple[int, int]]) -> None:
        if rows == self._row_list:
            return
        self._row_list = rows
        size = self.graphs.size_for(len(rows))
        nobody = self.capacity.n_slots
        filled = rows + [(nobody, nobody)] * (size - len(rows))
        self.rows[:, :size] = self.state.moved(torch.tensor(filled, dtype=torch.int32)).t()

    def _beams_advance(self, running: Sequence[Running], logits: Tensor) -> list[Outcome]:
        first_row = 0
        rows: list[int] = []
        for each in running:
            if each.decoding is not None:
                rows += range(first_row, first_row + len(each.slots))
            first_row += len(each.slots)
        decodings = [each.decoding for each in running if each.decoding is not None]
        return self._choose_on_host(decodings, logits[rows])

    def _outcome(self, running: Running, report: StateSnapshot) -> Outcome:
        if report.n_bursts < running.first_burst:
            return InProgress(None)  # it began after that
        is_done = report.is_done(running.slots)
        if not is_done and not running.is_watched:
            return InProgress(None)
        candidates = {slot: report.candidate(slot) for slot in running.slots}
        best_slot = max(candidates, key=lambda slot: candidates[slot].score(running.params.length_penalty))
        best = candidates[best_slot]
        no_speech_prob = report.no_speech_prob(running.slots[0])
        if math.isnan(no_speech_prob) or any(math.isnan(own.sum_logprob) for own in candidates.values()):
            return Failed(not_numbers(self.compute_type))
        if not is_done:
            return InProgress(best.tokens)
        logprobs = self.state.logprobs_of(best_slot, len(best.tokens)) if running.params.token_logprobs else None
        return Finished(Decoded(best.tokens, best.avg_logprob, no_speech_prob, logprobs))

    def release(self, slots: tuple[int, ...]) -> None:
        if slots:
            self._running.pop(slots[0], None)

    @torch.inference_mode()
    def align(self, known: Sequence[tuple[Any, Params[Any]]]) -> Sequence[Outcome]:
        self.took_s = None  # this one waits
        with self._on_device():
            return self._align_and_detect.answer(known)


def is_beam_search(params: DecodeParams) -> bool:
    return params.temperature == 0 and params.n_candidates > 1
