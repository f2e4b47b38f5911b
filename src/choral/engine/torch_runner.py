"""The runner for CPUs, and for GPUs without Triton: plain torch with continuous batching.

Windows join and leave the decoder's batch at every step. Float32 on a CPU is the reference for all other runners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from choral.config import EngineSettings
from choral.engine.align_and_detect import AlignAndDetect
from choral.engine.cpu_lanes import CpuLanes
from choral.engine.decoding import Decoding, initial_tokens
from choral.engine.host_sampler import HostSampler
from choral.engine.runner import PrefillInput
from choral.engine.steps import Outcome
from choral.engine.torch_device import DTYPES, capacity_of, limit_primitive_cache, pick_compute_type, pick_device
from choral.engine.window import Params, WindowAudio
from choral.errors import UsageError
from choral.model import int8
from choral.model.checkpoint import Checkpoint
from choral.model.kv_cache import BatchRows, Bf16KVCache, KVCache
from choral.model.tokenizer import Tokenizer
from choral.model.whisper import Whisper

Part = TypeVar("Part")
Done = TypeVar("Done")

MIN_DECODES_PER_LANE = 3  # fewer windows decode faster in one lane with all cores


class TorchRunner:
    name = "torch"
    costs = None  # every call waits for its results

    @torch.inference_mode()
    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> None:
        device = pick_device(settings.device)
        self.device, self.compute_type = str(device), pick_compute_type(settings.compute_type, device)
        if self.compute_type == "fp8":
            raise UsageError("compute type fp8 needs Triton, and a model with a head width of 16, 32, 64 or 128")
        self._device, dtype = device, DTYPES[self.compute_type]
        if device.type == "cpu":
            limit_primitive_cache()
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self._tokenizer, self._dims = tokenizer, checkpoint.dims
        self._network = Whisper.from_checkpoint(checkpoint, device, dtype)
        if self.compute_type == "int8":
            int8.quantize(self._network)
        is_bf16 = self.compute_type == "int8" and int8.has_native_bf16()
        cross_dtype = torch.bfloat16 if is_bf16 else dtype
        self._lanes = CpuLanes() if device.type == "cpu" else None
        capacity = capacity_of(checkpoint.dims, device, dtype, settings, cross_dtype)
        self.capacity = replace(capacity, n_lanes=self._lanes.n_lanes if self._lanes else 1)
        n_slots, kind = self.capacity.n_slots, Bf16KVCache if is_bf16 else KVCache
        self._kv_cache = kind(checkpoint.dims, n_slots, device, dtype, cross_dtype)
        self._host_sampler = HostSampler(tokenizer, checkpoint.dims, self._kv_cache, n_slots, self.compute_type)
        heads = checkpoint.alignment_heads
        self._align_and_detect = AlignAndDetect(self._network.decoder, tokenizer, heads, self.compute_type)
        self._decodings: dict[int, Decoding] = {}  # by their first slot, which holds the cross-attention K/V

    def encode(self, audios: Sequence[WindowAudio]) -> Sequence[Tensor]:  # each [frames, state]
        if self._lanes and len(audios) > 1:
            return [features for (features,) in self._lanes.map(self._encode, [[audio] for audio in audios])]
        return self._encode(audios)

    @torch.inference_mode()
    def _encode(self, audios: Sequence[WindowAudio]) -> Sequence[Tensor]:
        mels = np.stack([audio.log_mel(self._dims.n_mels) for audio in audios])
        dtype = self._network.encoder.conv1.weight.dtype
        features: Tensor = self._network.encoder(torch.from_numpy(mels).to(self._device, dtype))
        return [each.clone() for each in features]  # separate, so that the cache can drop each alone

    @torch.inference_mode()
    def prefill(self, starts: Sequence[PrefillInput]) -> Sequence[Outcome]:
        """Run all prompts in one pass, padded at their end, where no earlier token attends."""
        prompts = [initial_tokens(start.params, self._tokenizer, self._dims.n_text_ctx) for start in starts]
        audio_slots = [start.slots[0] for start in starts]
        self._in_lanes(self._write_cross_kv, starts, min_per_lane=1)
        rows = BatchRows.for_prefill(audio_slots, [len(prompt) for prompt in prompts], self._device)
        states = self._network.decoder(self._padded(prompts), rows, self._kv_cache)

        positions = [
            *(row[prompt.index(self._tokenizer.sot)] for row, prompt in zip(states, prompts, strict=True)),
            *(row[len(prompt) - 1] for row, prompt in zip(states, prompts, strict=True)),
        ]
        at_start, at_end = self._network.decoder.logits(torch.stack(positions)).chunk(2)
        no_speech = torch.softmax(at_start, dim=-1)[:, self._tokenizer.no_speech].tolist()
        begun = zip(starts, map(len, prompts), no_speech, strict=True)
        decodings = [self._host_sampler.begin(*each) for each in begun]
        counts = torch.tensor([len(decoding.search.rows) for decoding in decodings], device=self._device)
        logits = at_end.repeat_interleave(counts, dim=0)
        outcomes = self._host_sampler.sample(decodings, logits)
        self._decodings |= {decoding.slots[0]: decoding for decoding in decodings}
        return outcomes

    @torch.inference_mode()
    def decode(self, windows: Sequence[tuple[int, ...]]) -> Sequence[Outcome]:
        """Add a token to all rows of these windows, in one pass."""
        decodings = [self._decodings[slot] for slot in sorted(slots[0] for slots in windows)]  # neighbours together
        logits = torch.cat(self._in_lanes(self._step, decodings, MIN_DECODES_PER_LANE))
        outcomes = self._host_sampler.sample(decodings, logits)
        by_slot = {decoding.slots[0]: outcome for decoding, outcome in zip(decodings, outcomes, strict=True)}
        return [by_slot[slots[0]] for slots in windows]

    @torch.inference_mode()
    def _write_cross_kv(self, starts: Sequence[PrefillInput]) -> None:
        features = torch.stack([start.features for start in starts])
        self._network.decoder.write_cross_kv(features, [start.slots[0] for start in starts], self._kv_cache)

    def _in_lanes(
        self, action: Callable[[Sequence[Part]], Done], parts: Sequence[Part], min_per_lane: int
    ) -> list[Done]:
        """Split the parts evenly over the lanes, if each lane gets enough of them."""
        if self._lanes is None or len(parts) < min_per_lane * self._lanes.n_lanes:
            return [action(parts)]
        n_each = -(-len(parts) // self._lanes.n_lanes)
        return self._lanes.map(action, [parts[start : start + n_each] for start in range(0, len(parts), n_each)])

    @torch.inference_mode()
    def _step(self, decodings: Sequence[Decoding]) -> Tensor:
        """The logits of all their rows."""
        slots = [slot for decoding in decodings for slot in decoding.row_slots]
        lengths = [decoding.length - 1 for decoding in decodings for _ in decoding.search.rows]
        cross_rows = [(decoding.slots[0], len(decoding.search.rows)) for decoding in decodings]
        rows = BatchRows.for_decode(slots, lengths, cross_rows, self._device)
        states = self._network.decoder(self._host_sampler.next_tokens(rows.slots)[:, None], rows, self._kv_cache)
        return self._network.decoder.logits(states[:, -1])

    def release(self, slots: tuple[int, ...]) -> None:
        if slots:
            self._decodings.pop(slots[0], None)

    @torch.inference_mode()
    def align(self, inputs: Sequence[tuple[Any, Params[Any]]]) -> Sequence[Outcome]:
        return self._align_and_detect(inputs)

    def _padded(self, prompts: Sequence[list[int]]) -> Tensor:
        max_length = max(map(len, prompts))
        padded = [[*prompt, *[self._tokenizer.eot] * (max_length - len(prompt))] for prompt in prompts]
        return torch.tensor(padded, device=self._device)
