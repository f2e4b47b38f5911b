"""What a GPU knows of the windows in its slots: what they want, how far they got. The host sees it one burst late.

All whole numbers lie in one tensor and all others in a second, so that windows begin with one copy to the device, and
one copy back tells the host of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from choral.audio.constants import FRAMES_PER_SECOND
from choral.engine.decoding import window_seed
from choral.engine.rules import NEVER
from choral.engine.runner import PrefillInput
from choral.engine.search import Candidate
from choral.engine.torch_device import moved
from choral.kernels.sample import DecodeState, SamplingParams, Vocabulary
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer

# The rows of the whole numbers. The first six are what a window wants, the others how far it got.
BLANK, TIMESTAMPS, LATEST_FIRST, SEED, MAX_TOKENS, BY_HOST = range(6)
RECENT = 6  # and the three after it
LENGTH, NEXT, N_TEXT, DONE = range(10, 14)
N_NUMBERS = 14
TEMPERATURE, SUM_LOGPROB, NO_SPEECH = range(3)


@dataclass(frozen=True)
class PrefillRow:
    """A window that takes its places after a prompt of so many tokens."""

    start: PrefillInput
    n_prompt: int
    is_host_sampled: bool


class GpuState:
    """One entry more than there are slots: rows that fill a batch up to its size point there, and are done."""

    def __init__(self, tokenizer: Tokenizer, dims: ModelDims, n_slots: int, device: torch.device) -> None:
        self._tokenizer, self._dims, self.device = tokenizer, dims, device
        self.n_entries = n_slots + 1
        numbers = torch.zeros(N_NUMBERS, self.n_entries, dtype=torch.long, device=device)
        numbers[DONE] = 1
        others = torch.zeros(3, self.n_entries, device=device)
        texts = torch.zeros(self.n_entries, dims.n_text_ctx, dtype=torch.int32, device=device)
        logprobs = torch.zeros(self.n_entries, dims.n_text_ctx, device=device)
        banned_tokens = torch.zeros(self.n_entries, dims.n_vocab, dtype=torch.bool, device=device)
        self.numbers, self.others, self.texts = numbers, others, texts
        self.wanted = SamplingParams(
            suppress_blank=numbers[BLANK],
            banned_tokens=banned_tokens,
            timestamps=numbers[TIMESTAMPS],
            max_first_timestamp=numbers[LATEST_FIRST],
            temperatures=others[TEMPERATURE],
            seeds=numbers[SEED],
            max_tokens=numbers[MAX_TOKENS],
            is_host_sampled=numbers[BY_HOST],
        )
        self.progress = DecodeState(
            recent=numbers[RECENT : RECENT + 4],
            lengths=numbers[LENGTH],
            next_tokens=numbers[NEXT],
            texts=texts,
            logprobs=logprobs,
            n_text=numbers[N_TEXT],
            sum_logprobs=others[SUM_LOGPROB],
            is_done=numbers[DONE],
        )
        (space,) = tokenizer.encode(" ")
        self.vocabulary = Vocabulary(dims.n_vocab, tokenizer.eot, space, tokenizer.timestamp_begin)
        self._masks: dict[tuple[int, ...], Tensor] = {}

    def begin(self, beginnings: Sequence[PrefillRow]) -> None:
        columns, temperatures, slots = [], [], []
        by_mask: dict[tuple[int, ...], list[int]] = {}
        for beginning in beginnings:
            params = beginning.start.params
            mask = (*params.suppress_tokens, *((self._tokenizer.no_timestamps,) if params.timestamps else ()))
            by_mask.setdefault(mask, []).extend(beginning.start.slots)
            for row, slot in enumerate(beginning.start.slots):
                slots.append(slot)
                columns.append(self._numbers_of(beginning, row))
                temperatures.append(params.temperature)
        places = self.moved(torch.tensor(slots))
        self.numbers[:, places] = self.moved(torch.tensor(columns)).t()
        fresh = torch.zeros(3, len(slots))
        fresh[TEMPERATURE] = torch.tensor(temperatures)
        self.others[:, places] = self.moved(fresh)
        for mask, mask_slots in by_mask.items():
            self.wanted.banned_tokens[self.moved(torch.tensor(mask_slots))] = self._mask(mask)

    def _numbers_of(self, beginning: PrefillRow, row: int) -> list[int]:
        start, params = beginning.start, beginning.start.params
        begin, seconds = self._tokenizer.timestamp_begin, params.max_initial_timestamp
        latest = self._dims.n_vocab if seconds is None else begin + round(seconds * FRAMES_PER_SECOND)
        seed = window_seed(params, start.audio_key) + row
        max_tokens = params.max_tokens or self._dims.n_text_ctx // 2
        wants = [
            int(params.suppress_blank),
            int(params.timestamps),
            latest,
            seed,
            max_tokens,
            int(beginning.is_host_sampled),
        ]
        return [*wants, NEVER, NEVER, NEVER, 0, beginning.n_prompt, 0, 0, 0]

    def logprobs_of(self, slot: int, n_tokens: int) -> tuple[float, ...]:
        """Of a text that has ended. Few ask for them, so they are no part of what comes back after every burst."""
        return tuple(self.progress.logprobs[slot, :n_tokens].tolist())

    def _mask(self, tokens: tuple[int, ...]) -> Tensor:
        if tokens not in self._masks:
            mask = torch.zeros(self._dims.n_vocab, dtype=torch.bool)
            mask[list(tokens)] = True
            self._masks = {**dict(list(self._masks.items())[-15:]), tokens: self.moved(mask)}
        return self._masks[tokens]

    def moved(self, tensor: Tensor) -> Tensor:
        return moved(tensor, self.device)


class StateSnapshot:
    """A copy of the state as it was after some burst, in memory that the device writes while the host works on."""

    def __init__(self, state: GpuState) -> None:
        is_cuda = state.device.type == "cuda"
        sources = (state.numbers[N_TEXT:], state.others, state.texts)
        self._copies = [torch.empty(s.shape, dtype=s.dtype, pin_memory=is_cuda) for s in sources]
        self._sources = sources
        self._is_complete = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        self.n_bursts = 0  # that were launched before it

    def take(self, n_bursts: int) -> None:
        self.n_bursts = n_bursts
        for copy, source in zip(self._copies, self._sources, strict=True):
            copy.copy_(source, non_blocking=True)
        if self._is_complete is not None:
            self._is_complete.record()

    def wait(self) -> None:
        if self._is_complete is not None:
            self._is_complete.synchronize()
        self._numbers, self._others, self._texts = (copy.numpy() for copy in self._copies)

    def is_done(self, slots: Sequence[int]) -> bool:
        return all(self._numbers[DONE - N_TEXT, slot] for slot in slots)

    def candidate(self, slot: int) -> Candidate:
        text = self._texts[slot, : self._numbers[0, slot]]
        return Candidate(tuple(text.tolist()), float(self._others[SUM_LOGPROB, slot]))

    def no_speech_prob(self, slot: int) -> float:
        return float(self._others[NO_SPEECH, slot])
