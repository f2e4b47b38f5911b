"""The runner for NVIDIA GPUs: continuous batching in which the host hardly ever waits for the device.

Rules, sampling and their effects stay on the device: a burst of a few decoder steps is launched as CUDA graphs, and
while it runs the host reads the results of the burst before it. A row that has ended does nothing until the host has
seen that. Beam search runs on the host, which then reads back after every step. With a draft model, a step proposes
several tokens of each row and verifies them in one pass, where that is faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from choral.config import EngineSettings
from choral.engine.align_and_detect import AlignAndDetect
from choral.engine.cost_model import CostModel
from choral.engine.decoding import Decoding, initial_tokens, nan_failure
from choral.engine.gpu_draft import GpuDraft
from choral.engine.gpu_encode import GpuEncode, GpuFeatures
from choral.engine.gpu_graphs import GpuTimer, StepGraphs, sizes_up_to
from choral.engine.gpu_prefill import GpuPrefill
from choral.engine.gpu_state import NO_SPEECH, GpuState, PrefillRow, StateSnapshot
from choral.engine.host_sampler import HostSampler
from choral.engine.runner import PrefillInput
from choral.engine.search import is_beam_search
from choral.engine.speculation import AcceptanceTracker, SpeculationPolicy
from choral.engine.steps import Failed, Finished, InProgress, Outcome
from choral.engine.torch_device import DTYPES, capacity_of, pick_compute_type, pick_device
from choral.engine.window import Decoded, DecodeParams, Params, WindowAudio
from choral.kernels.embed import embed
from choral.kernels.fp8 import FP8
from choral.kernels.sample import sample
from choral.model.checkpoint import Checkpoint
from choral.model.gpu_decoder import GpuDecoder, TokenRows
from choral.model.gpu_encoder import GpuEncoder
from choral.model.gpu_layers import make_contiguous
from choral.model.kv_cache import GpuKVCache
from choral.model.tokenizer import Tokenizer
from choral.model.whisper import Whisper

EFFICIENT_ENCODE_BATCH = 8  # with more windows, encoder throughput hardly grows
BURST_S = 0.004  # length of a burst, if that is more than one step
MAX_BURST_STEPS = 8


@dataclass(frozen=True, eq=False)
class Running:
    """A window in its slots; only beam search has a decoding on the host."""

    slots: tuple[int, ...]
    params: DecodeParams
    first_burst: int
    decoding: Decoding | None = None


class GpuRunner:
    name = "torch"

    @torch.inference_mode()
    def __init__(
        self, checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings, draft: Checkpoint | None = None
    ) -> None:
        self._device = device = pick_device(settings.device)
        self.device, self.compute_type = str(device), pick_compute_type(settings.compute_type, device)
        dtype, dims, fp8 = DTYPES[self.compute_type], checkpoint.dims, self.compute_type == "fp8"
        self._tokenizer, self._dims = tokenizer, dims
        with self._on_device():
            network = Whisper.from_checkpoint(checkpoint, device, dtype)
            make_contiguous(network)
            self._decoder = GpuDecoder(network.decoder, fp8=fp8, is_invariant=settings.batch_invariant)
            heads = checkpoint.alignment_heads
            self._align_and_detect = AlignAndDetect(network.decoder, tokenizer, heads, self.compute_type)
            max_windows = max(1, settings.encoder_budget // dims.n_audio_ctx)
            self.encoder = GpuEncode(GpuEncoder(network.encoder, fp8=fp8), dims.n_mels, max_windows, device)
            draft_dims = draft.dims if draft else None
            capacity = capacity_of(dims, device, dtype, settings, FP8 if fp8 else None, draft_dims)
            self.capacity = replace(capacity, n_lanes=EFFICIENT_ENCODE_BATCH)
            n_slots = self.capacity.n_slots
            self._kv_cache = GpuKVCache(dims, n_slots, device, dtype, fp8=fp8)
            self.state = GpuState(tokenizer, dims, n_slots, device)
            self._prefill = GpuPrefill(self._decoder, tokenizer, dims, self._kv_cache, self.state)
            self._host_sampler = HostSampler(tokenizer, dims, self._kv_cache, n_slots + 1, self.compute_type)
            self.rows = torch.full((2, n_slots), n_slots, dtype=torch.int32, device=device)  # slots, audio slots
            self._row_list: list[tuple[int, int]] = []
            self._all_rows = torch.arange(n_slots, dtype=torch.int32, device=device)
            self.graphs = StepGraphs(self._step, sizes_up_to(n_slots), device)
            self.speculation = SpeculationPolicy(settings.draft_tokens if draft else 0)
            self._draft: GpuDraft | None = None
            if draft is not None:
                make_draft = partial(GpuDraft, max_windows=max_windows, fp8=fp8)
                self._draft = make_draft(draft, checkpoint, tokenizer, self.state, dtype)
                self._draft_graphs = StepGraphs(self._draft_and_verify, sizes_up_to(n_slots), device)
        self._running: dict[int, Running] = {}  # by their first slot, which holds the cross-attention K/V
        self._n_bursts = 0
        self._snapshots = [StateSnapshot(self.state), StateSnapshot(self.state)]
        self._acceptance = AcceptanceTracker(self.speculation)
        self.costs = CostModel()
        self._timer = GpuTimer(device)

    def _on_device(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()

    def _step(self, n_rows: int) -> Tensor:
        """One decoder step of the first rows: the content of a graph."""
        state = self.state
        slots, audio_slots = self.rows[:, :n_rows]
        x, positions = embed(state.decode, slots, self._decoder.embedding, self._decoder.positions)
        logits = self._decoder.logits(self._decoder(x, TokenRows(slots, audio_slots, positions), self._kv_cache))
        sample(logits, self._all_rows[:n_rows], slots, state.sampling, state.decode, state.vocabulary)
        return logits

    def _draft_and_verify(self, n_rows: int) -> Tensor:
        """A step that drafts tokens, and samples from the model as long as it agrees with them."""
        assert self._draft is not None
        state, n_drafts, decoder = self.state, self.speculation.n_drafts, self._decoder
        slots, audio_slots = self.rows[:, :n_rows]
        self._draft.propose(slots, audio_slots, n_drafts)
        x, positions = embed(state.decode, slots, decoder.embedding, decoder.positions, n_drafted=n_drafts)
        logits = decoder.logits(decoder(x, TokenRows(slots, audio_slots, positions), self._kv_cache))
        sample(
            logits, self._all_rows[:n_rows], slots, state.sampling, state.decode, state.vocabulary,
            n_tokens=n_drafts + 1,
        )  # fmt: skip
        return logits

    @torch.inference_mode()
    def encode(self, audios: Sequence[WindowAudio]) -> Sequence[GpuFeatures]:
        with self._on_device():
            return self._timer.run(lambda: self._encode(audios), partial(self.costs.encode.learn, len(audios)))

    def _encode(self, audios: Sequence[WindowAudio]) -> list[GpuFeatures]:
        features = self.encoder(audios)
        if self._draft is None or self._draft.encode is None:
            return [GpuFeatures(each, each) for each in features]
        return list(map(GpuFeatures, features, self._draft.encode(audios)))

    @torch.inference_mode()
    def prefill(self, starts: Sequence[PrefillInput]) -> Sequence[Outcome]:
        prompts = [initial_tokens(start.params, self._tokenizer, self._dims.n_text_ctx) for start in starts]
        on_measured = partial(self.costs.prefill.learn, len(starts))
        with self._on_device():
            at_start, at_end = self._timer.run(lambda: self._run_prompts(starts, prompts), on_measured)
            return self._begin(starts, prompts, at_start, at_end)

    def _run_prompts(self, starts: Sequence[PrefillInput], prompts: Sequence[list[int]]) -> Tensor:
        if self._draft is not None:
            self._draft.prefill(starts, prompts, [start.features.draft for start in starts])
        return self._prefill(starts, prompts, [start.features.model for start in starts])

    def _begin(
        self, starts: Sequence[PrefillInput], prompts: Sequence[list[int]], at_start: Tensor, at_end: Tensor
    ) -> list[Outcome]:
        """Set the state of new windows and sample their first tokens."""
        state = self.state
        no_speech = torch.softmax(at_start, dim=-1)[:, self._tokenizer.no_speech]
        is_host_sampled = [is_beam_search(start.params) for start in starts]
        state.begin([PrefillRow(*row) for row in zip(starts, prompts, is_host_sampled, strict=True)])
        lengths = [len(prompt) for prompt in prompts]
        self._copy_prompts(starts, max(lengths))
        slots = state.to_device(torch.tensor([slot for start in starts for slot in start.slots], dtype=torch.int32))
        rows = [row for row, start in enumerate(starts) for _ in start.slots]
        logit_rows = state.to_device(torch.tensor(rows, dtype=torch.int32))
        state.float_state[NO_SPEECH, slots.long()] = no_speech[logit_rows.long()]
        sample(at_end, logit_rows, slots, state.sampling, state.decode, state.vocabulary)
        return self._add_running(starts, lengths, no_speech, at_end)

    def _copy_prompts(self, starts: Sequence[PrefillInput], n_positions: int) -> None:
        """Samples continue the one prompt of their window; the host sampler copies those of beams."""
        sampled = [start for start in starts if not is_beam_search(start.params)]
        pairs = [(start.slots[0], slot) for start in sampled for slot in start.slots[1:]]
        if pairs:
            sources, targets = self.state.to_device(torch.tensor(pairs)).t()
            self._kv_cache.copy(sources, targets, n_positions)
            if self._draft is not None:
                self._draft.copy_prompts(sources, targets, n_positions)

    def _add_running(
        self, starts: Sequence[PrefillInput], lengths: Sequence[int], no_speech: Tensor, logits: Tensor
    ) -> list[Outcome]:
        beams = [row for row, start in enumerate(starts) if is_beam_search(start.params)]
        decodings = {
            row: self._host_sampler.begin(starts[row], lengths[row], prob)
            for row, prob in zip(beams, no_speech[beams].tolist() if beams else [], strict=True)
        }
        outcomes: list[Outcome] = [InProgress()] * len(starts)
        if beams:
            rows = [row for row in beams for _ in starts[row].slots]
            sampled = self._host_sampler.sample(list(decodings.values()), logits[rows])
            for row, outcome in zip(beams, sampled, strict=True):
                outcomes[row] = outcome
        for row, start in enumerate(starts):
            running = Running(start.slots, start.params, self._n_bursts + 1, decodings.get(row))
            self._running[start.slots[0]] = running
            self._acceptance.begin(start.slots[0])
        return outcomes

    @torch.inference_mode()
    def decode(self, windows: Sequence[tuple[int, ...]]) -> Sequence[Outcome]:
        """Launch a burst for these windows, then read the results of the burst before it."""
        running = [self._running[slots[0]] for slots in windows]
        beams = [each for each in running if each.decoding is not None]
        with self._on_device():
            self._set_rows([(slot, each.slots[0]) for each in running for slot in each.slots])
            self._set_beam_inputs([each.decoding for each in beams if each.decoding is not None])
            self._n_bursts += 1
            logits = self._launch_one() if beams else self._launch_burst()
            newest, previous = self._snapshots[self._n_bursts % 2], self._snapshots[(self._n_bursts + 1) % 2]
            newest.take(self._n_bursts)
            previous.wait()
            outcomes = {each.slots[0]: self._outcome(each, previous) for each in running if each.decoding is None}
            # Beams last: whatever fails before is retried, and their searches must not advance twice.
            sampled = self._advance_beams(running, logits) if beams else []
        outcomes |= {each.slots[0]: outcome for each, outcome in zip(beams, sampled, strict=True)}
        return [outcomes[each.slots[0]] for each in running]

    def _launch_one(self) -> Tensor:
        """One step without drafts, whose logits the host samples from."""
        n_rows = len(self._row_list)
        self._acceptance.skip(audio_slot for _, audio_slot in self._row_list)
        return self._timer.run(lambda: self.graphs.run(n_rows), partial(self.costs.decode.learn, n_rows))

    def _launch_burst(self) -> Tensor:
        """A burst of about `BURST_S`, by the measured time of a step."""
        n_rows, speculation = len(self._row_list), self.speculation
        n_drafts = speculation.next_drafts(n_rows)
        step_cost, graphs = speculation.cost_of(n_drafts), self._draft_graphs if n_drafts else self.graphs
        if not n_drafts:
            self._acceptance.skip(audio_slot for _, audio_slot in self._row_list)
        step_s = step_cost.seconds(n_rows)
        n_steps = max(1, min(MAX_BURST_STEPS, round(BURST_S / step_s))) if step_s else 1

        def on_measured(burst_s: float) -> None:
            self.costs.decode.learn(n_rows, burst_s)
            step_cost.learn(n_rows, burst_s / n_steps)

        return self._timer.run(lambda: graphs.run(n_rows, n_steps), on_measured)

    def _set_rows(self, rows: list[tuple[int, int]]) -> None:
        if rows == self._row_list:
            return
        self._row_list = []  # unknown, if the copy fails
        size, pad_slot = self.graphs.size_for(len(rows)), self.state.pad_slot
        padded = rows + [(pad_slot, pad_slot)] * (size - len(rows))
        self.rows[:, :size] = self.state.to_device(torch.tensor(padded, dtype=torch.int32)).t()
        self._row_list = rows

    def _set_beam_inputs(self, decodings: Sequence[Decoding]) -> None:
        """Before the step that reads them, not after the one before: this can be repeated if the step fails."""
        if not decodings:
            return
        slots = [slot for decoding in decodings for slot in decoding.slots]
        lengths = [decoding.length for decoding in decodings for _ in decoding.slots]
        indices, n_tokens = self.state.to_device(torch.tensor([slots, lengths]))
        self.state.decode.lengths[indices] = n_tokens
        self.state.decode.next_tokens[indices] = self._host_sampler.next_tokens(indices)

    def _advance_beams(self, running: Sequence[Running], logits: Tensor) -> list[Outcome]:
        first_row = 0
        rows: list[int] = []
        for each in running:
            if each.decoding is not None:
                rows += range(first_row, first_row + len(each.slots))
            first_row += len(each.slots)
        decodings = [each.decoding for each in running if each.decoding is not None]
        return self._host_sampler.sample(decodings, logits[rows])

    def _outcome(self, running: Running, snapshot: StateSnapshot) -> Outcome:
        if snapshot.n_bursts < running.first_burst:
            return InProgress()  # the window joined after the snapshot
        if self._draft is not None:
            self._acceptance.update(running.slots[0], *snapshot.drafted(running.slots[0]))
        if not snapshot.is_done(running.slots):
            return InProgress(has_tokens=True)
        candidates = {slot: snapshot.candidate(slot) for slot in running.slots}
        best_slot = max(candidates, key=lambda slot: candidates[slot].score(running.params.length_penalty))
        best = candidates[best_slot]
        no_speech_prob = snapshot.no_speech_prob(running.slots[0])
        if math.isnan(no_speech_prob) or any(math.isnan(each.sum_logprob) for each in candidates.values()):
            return Failed(nan_failure(self.compute_type))
        logprobs = self.state.logprobs_of(best_slot, len(best.tokens)) if running.params.token_logprobs else None
        return Finished(Decoded(best.tokens, best.avg_logprob, no_speech_prob, logprobs))

    def release(self, slots: tuple[int, ...]) -> None:
        if slots:
            self._running.pop(slots[0], None)

    @torch.inference_mode()
    def align(self, inputs: Sequence[tuple[GpuFeatures, Params[Any]]]) -> Sequence[Outcome]:
        models = [(features.model, params) for features, params in inputs]
        with self._on_device():
            return self._timer.run(lambda: self._align_and_detect(models), partial(self.costs.align.learn, len(models)))
