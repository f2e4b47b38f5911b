"""Runs windows on the network with torch, continuously: windows join and leave the decoder's batch at every step.

Float32 on a CPU is the reference for everything else. A runner belongs to one thread, the engine's.
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
from choral.engine.decoding import Decoding
from choral.engine.host_sampler import HostSampler
from choral.engine.prompt import initial_tokens
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

FEWEST_IN_STEP = 3  # windows of a lane, from which on it gains anything


class TorchRunner:
    name = "torch"
    took_s: float | None = None  # every call waits

    @torch.inference_mode()
    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> None:
        device = pick_device(settings.device)
        self.device, self.compute_type = str(device), pick_compute_type(settings.compute_type, device)
        if self.compute_type == "fp8":
            raise UsageError("compute type fp8 needs Triton beside torch, and a model with heads of a usual width")
        self._device, dtype = device, DTYPES[self.compute_type]
        if device.type == "cpu":
            limit_primitive_cache()
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self._tokenizer, self._dims = tokenizer, checkpoint.dims
        self._network = Whisper.from_checkpoint(checkpoint, device, dtype)
        if self.compute_type == "int8":
            int8.quantize(self._network)
        is_half = self.compute_type == "int8" and int8.has_native_bf16()
        heard_dtype = torch.bfloat16 if is_half else dtype
        self._lanes = CpuLanes() if device.type == "cpu" else None
        capacity = capacity_of(checkpoint.dims, device, dtype, settings.slots, heard_dtype)
        self.capacity = replace(capacity, n_lanes=self._lanes.n_lanes if self._lanes else 1)
        n_slots, kind = self.capacity.n_slots, Bf16KVCache if is_half else KVCache
        self._memory = kind(checkpoint.dims, n_slots, device, dtype, heard_dtype)
        self._host_sampler = HostSampler(tokenizer, checkpoint.dims, self._memory, n_slots, self.compute_type)
        heads = checkpoint.alignment_heads
        self._align_and_detect = AlignAndDetect(self._network.decoder, tokenizer, heads, self.compute_type)
        self._decodings: dict[int, Decoding] = {}  # by their first slot, where their audio lies

    def encode(self, audios: Sequence[WindowAudio]) -> Sequence[Tensor]:  # each [frames, state]
        if self._lanes and len(audios) > 1:
            return [features for (features,) in self._lanes.map(self._encode, [[audio] for audio in audios])]
        return self._encode(audios)

    @torch.inference_mode()
    def _encode(self, audios: Sequence[WindowAudio]) -> Sequence[Tensor]:
        mels = np.stack([audio.log_mel(self._dims.n_mels) for audio in audios])
        dtype = self._network.encoder.conv1.weight.dtype
        features: Tensor = self._network.encoder(torch.from_numpy(mels).to(self._device, dtype))
        return [own.clone() for own in features]  # each on its own, so that one can be forgotten without the others

    @torch.inference_mode()
    def prefill(self, starts: Sequence[PrefillInput]) -> Sequence[Outcome]:
        """Runs all prompts in one pass, the short ones filled up at their end, where no earlier token looks."""
        prompts = [initial_tokens(start.params, self._tokenizer, self._dims.n_text_ctx) for start in starts]
        audio_slots = [start.slots[0] for start in starts]
        self._in_lanes(self._hear, starts, fewest=1)
        rows = BatchRows.for_prefill(audio_slots, [len(prompt) for prompt in prompts], self._device)
        states = self._network.decoder(self._padded(prompts), rows, self._memory)

        asked = [
            *(own[prompt.index(self._tokenizer.sot)] for own, prompt in zip(states, prompts, strict=True)),
            *(own[len(prompt) - 1] for own, prompt in zip(states, prompts, strict=True)),
        ]
        at_start, at_end = self._network.decoder.logits(torch.stack(asked)).chunk(2)
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
        """One token further for all rows of these windows, in one pass through the network."""
        decodings = [self._decodings[slot] for slot in sorted(slots[0] for slots in windows)]  # neighbours together
        outcomes = self._host_sampler.sample(
            decodings, torch.cat(self._in_lanes(self._step, decodings, FEWEST_IN_STEP))
        )
        by_slot = {decoding.slots[0]: outcome for decoding, outcome in zip(decodings, outcomes, strict=True)}
        return [by_slot[slots[0]] for slots in windows]

    @torch.inference_mode()
    def _hear(self, starts: Sequence[PrefillInput]) -> None:
        features = torch.stack([start.features for start in starts])
        self._network.decoder.write_cross_kv(features, [start.slots[0] for start in starts], self._memory)

    def _in_lanes(self, action: Callable[[Sequence[Part]], Done], parts: Sequence[Part], fewest: int) -> list[Done]:
        """Side by side, as many parts in each lane, if there are that many for each."""
        if self._lanes is None or len(parts) < fewest * self._lanes.n_lanes:
            return [action(parts)]
        n_each = -(-len(parts) // self._lanes.n_lanes)
        return self._lanes.map(action, [parts[start : start + n_each] for start in range(0, len(parts), n_each)])

    @torch.inference_mode()
    def _step(self, decodings: Sequence[Decoding]) -> Tensor:
        """The logits of all their rows, after the token each was given last."""
        slots = [slot for decoding in decodings for slot in decoding.row_slots]
        lengths = [decoding.length - 1 for decoding in decodings for _ in decoding.search.rows]
        hearers = [(decoding.slots[0], len(decoding.search.rows)) for decoding in decodings]
        rows = BatchRows.for_decode(slots, lengths, hearers, self._device)
        states = self._network.decoder(self._host_sampler.next_tokens[rows.slots][:, None], rows, self._memory)
        return self._network.decoder.logits(states[:, -1])

    def release(self, slots: tuple[int, ...]) -> None:
        if slots:
            self._decodings.pop(slots[0], None)

    @torch.inference_mode()
    def align(self, known: Sequence[tuple[Any, Params[Any]]]) -> Sequence[Outcome]:
        return self._align_and_detect.answer(known)

    def _padded(self, prompts: Sequence[list[int]]) -> Tensor:
        longest = max(map(len, prompts))
        filled = [[*prompt, *[self._tokenizer.eot] * (longest - len(prompt))] for prompt in prompts]
        return torch.tensor(filled, device=self._device)
