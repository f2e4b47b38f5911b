"""The state of the windows in a GPU's slots: sampling parameters and decoding progress. The host reads it a burst late.

All integers are rows of one tensor and all floats rows of a second, so that new windows take one copy to the device,
and one copy back shows the host the progress of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from choral.audio.constants import FRAMES_PER_SECOND
from choral.engine.decoding import window_seed
from choral.engine.hotword_tables import HotwordTables
from choral.engine.hotword_trie import ROOT
from choral.engine.rules import NO_TOKEN
from choral.engine.runner import PrefillInput
from choral.engine.search import Candidate
from choral.engine.torch_device import to_device
from choral.kernels.decode_state import DecodeState, SamplingParams, Vocabulary
from choral.kernels.hotword_table import FORK_STATE, N_TRIED
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer

# Rows of `int_state`: seven sampling parameters, then the decoding progress.
BLANK, TIMESTAMPS, MAX_FIRST_TIMESTAMP, SEED, MAX_TOKENS, HOST_SAMPLED, HOTWORDS = range(7)
RECENT = 7  # and the three after it
LENGTH, NEXT, HOTWORD_NODE = range(11, 14)
FORKS = 14  # and those after it
PROMPT_END = FORKS + FORK_STATE + N_TRIED - 1
PAUSED = PROMPT_END + 1
N_TEXT, DONE, COMPARED, ACCEPTED = range(PAUSED + 1, PAUSED + 5)  # the host reads these
N_INTS = ACCEPTED + 1
MAX_DRAFTS = 8
# Rows of `float_state`.
TEMPERATURE, HOTWORD_BOOST, SUM_LOGPROB, NO_SPEECH, FORK_SCORES = range(5)  # and those after the last
N_FLOATS = FORK_SCORES + N_TRIED + 1


@dataclass(frozen=True)
class PrefillRow:
    start: PrefillInput
    prompt: Sequence[int]  # tokens
    is_host_sampled: bool


def decode_state(ints: Tensor, floats: Tensor, n_text_ctx: int) -> DecodeState:
    """The decoding progress in the rows of these two tensors, with texts and drafts of its own."""
    device, n_entries = ints.device, ints.shape[1]
    return DecodeState(
        recent=ints[RECENT : RECENT + 4],
        lengths=ints[LENGTH],
        next_tokens=ints[NEXT],
        hotword_nodes=ints[HOTWORD_NODE],
        forks=ints[FORKS:PROMPT_END],
        fork_scores=floats[FORK_SCORES:],
        texts=torch.zeros(n_entries, n_text_ctx, dtype=torch.int32, device=device),
        logprobs=torch.zeros(n_entries, n_text_ctx, device=device),
        n_text=ints[N_TEXT],
        sum_logprobs=floats[SUM_LOGPROB],
        is_done=ints[DONE],
        prompt_ends=ints[PROMPT_END],
        drafts=torch.zeros(MAX_DRAFTS, n_entries, dtype=torch.long, device=device),
        is_paused=ints[PAUSED],
        n_compared=ints[COMPARED],
        n_accepted=ints[ACCEPTED],
        forced_acceptance=torch.full((1,), -1, dtype=torch.long, device=device),
    )


class GpuState:
    """Has one entry more than there are slots: `pad_slot`, which padding rows point to, and which is always done."""

    def __init__(self, tokenizer: Tokenizer, dims: ModelDims, n_slots: int, device: torch.device) -> None:
        self._tokenizer, self._dims, self.device = tokenizer, dims, device
        self.pad_slot, n_entries = n_slots, n_slots + 1
        ints = torch.zeros(N_INTS, n_entries, dtype=torch.long, device=device)
        ints[DONE] = 1
        floats = torch.zeros(N_FLOATS, n_entries, device=device)
        self.int_state, self.float_state = ints, floats
        self._tables = HotwordTables(device)
        self._slot_tables: dict[int, Tensor] = {}  # of the windows in the slots: the device has only their addresses
        self.sampling = SamplingParams(
            suppress_blank=ints[BLANK],
            banned_tokens=torch.zeros(n_entries, dims.n_vocab, dtype=torch.bool, device=device),
            timestamps=ints[TIMESTAMPS],
            max_first_timestamp=ints[MAX_FIRST_TIMESTAMP],
            temperatures=floats[TEMPERATURE],
            seeds=ints[SEED],
            max_tokens=ints[MAX_TOKENS],
            is_host_sampled=ints[HOST_SAMPLED],
            hotwords=ints[HOTWORDS],
            hotword_boosts=floats[HOTWORD_BOOST],
            hotword_tables=self._slot_tables,
        )
        self.decode = decode_state(ints, floats, dims.n_text_ctx)
        (space,) = tokenizer.encode(" ")
        starts_word = torch.tensor([tokenizer.starts_word(token) for token in range(dims.n_vocab)], device=device)
        self.vocabulary = Vocabulary(dims.n_vocab, tokenizer.eot, space, tokenizer.timestamp_begin, starts_word)
        self._masks: dict[tuple[int, ...], Tensor] = {}

    def begin(self, rows: Sequence[PrefillRow]) -> None:
        """Set the state of new windows."""
        columns, floats, slots = [], [], []
        by_mask: dict[tuple[int, ...], list[int]] = {}
        for prefilled in rows:
            params = prefilled.start.params
            mask = (*params.suppress_tokens, *((self._tokenizer.no_timestamps,) if params.timestamps else ()))
            by_mask.setdefault(mask, []).extend(prefilled.start.slots)
            self._set_hotwords(prefilled)
            for row, slot in enumerate(prefilled.start.slots):
                slots.append(slot)
                columns.append(self._ints_of(prefilled, row))
                floats.append([params.temperature, params.hotword_boost, *[0.0] * (N_FLOATS - 2)])
        indices = self.to_device(torch.tensor(slots))
        self.int_state[:, indices] = self.to_device(torch.tensor(columns)).t()
        self.float_state[:, indices] = self.to_device(torch.tensor(floats)).t()
        for mask, mask_slots in by_mask.items():
            self.sampling.banned_tokens[self.to_device(torch.tensor(mask_slots))] = self._mask(mask)

    def _set_hotwords(self, prefilled: PrefillRow) -> None:
        trie = prefilled.start.params.hotwords
        for slot in prefilled.start.slots:
            if trie is None or prefilled.is_host_sampled or prefilled.start.params.temperature > 0:
                self._slot_tables.pop(slot, None)
            else:
                self._slot_tables[slot] = self._tables.table(trie)

    def _ints_of(self, prefilled: PrefillRow, row: int) -> list[int]:
        start, params = prefilled.start, prefilled.start.params
        begin, seconds = self._tokenizer.timestamp_begin, params.max_initial_timestamp
        max_first = self._dims.n_vocab if seconds is None else begin + round(seconds * FRAMES_PER_SECOND)
        seed = window_seed(params, start.audio_key) + row
        max_tokens = params.max_tokens or self._dims.n_text_ctx // 2
        flags = [int(params.suppress_blank), int(params.timestamps)]
        table = self._slot_tables.get(start.slots[row])
        address = 0 if table is None else table.data_ptr()
        sampling = [*flags, max_first, seed, max_tokens, int(prefilled.is_host_sampled), address]
        forks = [NO_TOKEN, *[0] * (FORK_STATE - 1), *[NO_TOKEN] * (N_TRIED - 1)]
        prompt = prefilled.prompt
        return [*sampling, NO_TOKEN, NO_TOKEN, NO_TOKEN, 0, len(prompt), 0, ROOT, *forks, prompt[-1], *[0] * 5]

    def logprobs_of(self, slot: int, n_tokens: int) -> tuple[float, ...]:
        """Of a finished text. Rarely requested, so they are not part of every snapshot."""
        return tuple(self.decode.logprobs[slot, :n_tokens].tolist())

    def _mask(self, tokens: tuple[int, ...]) -> Tensor:
        if tokens not in self._masks:
            mask = torch.zeros(self._dims.n_vocab, dtype=torch.bool)
            mask[list(tokens)] = True
            self._masks = {**dict(list(self._masks.items())[-15:]), tokens: self.to_device(mask)}
        return self._masks[tokens]

    def to_device(self, tensor: Tensor) -> Tensor:
        return to_device(tensor, self.device)


class StateSnapshot:
    """A copy of the state after a burst, in pinned memory that the device writes while the host does other work."""

    def __init__(self, state: GpuState) -> None:
        is_cuda = state.device.type == "cuda"
        sources = (state.int_state[N_TEXT:], state.float_state, state.decode.texts)
        self._copies = [torch.empty(s.shape, dtype=s.dtype, pin_memory=is_cuda) for s in sources]
        self._sources = sources
        self._is_complete = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        self.n_bursts = 0  # that were launched before it

    def take(self, n_bursts: int) -> None:
        self.n_bursts = -1  # if a copy fails, no window may read it: slots may have had other windows before
        for copy, source in zip(self._copies, self._sources, strict=True):
            copy.copy_(source, non_blocking=True)
        if self._is_complete is not None:
            self._is_complete.record()
        self.n_bursts = n_bursts

    def wait(self) -> None:
        if self._is_complete is not None:
            self._is_complete.synchronize()
        self._ints, self._floats, self._texts = (copy.numpy() for copy in self._copies)

    def is_done(self, slots: Sequence[int]) -> bool:
        return all(self._ints[DONE - N_TEXT, slot] for slot in slots)

    def candidate(self, slot: int) -> Candidate:
        text = self._texts[slot, : self._ints[0, slot]]
        return Candidate(tuple(text.tolist()), float(self._floats[SUM_LOGPROB, slot]))

    def drafted(self, slot: int) -> tuple[int, int]:
        """How many drafted tokens were compared, and how many of them accepted."""
        return int(self._ints[COMPARED - N_TEXT, slot]), int(self._ints[ACCEPTED - N_TEXT, slot])

    def no_speech_prob(self, slot: int) -> float:
        return float(self._floats[NO_SPEECH, slot])
