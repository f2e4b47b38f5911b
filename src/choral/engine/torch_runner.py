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
from choral.engine.decoding import Decoding, answered
from choral.engine.lanes import Lanes
from choral.engine.prompt import initial_tokens, require_known
from choral.engine.rules import Rules
from choral.engine.runner import Start
from choral.engine.sampler import likeliest, pick
from choral.engine.search import BeamSearch, Next
from choral.engine.steps import Outcome
from choral.engine.torch_device import DTYPES, capacity_of, pick_compute_type, pick_device
from choral.engine.window import Align, Aligned, DetectLanguage, Languages, WindowAudio, Work
from choral.errors import UsageError
from choral.model import half, int8
from choral.model.checkpoint import Checkpoint
from choral.model.decoder import Memory, Rows
from choral.model.half import HalfMemory
from choral.model.tokenizer import Tokenizer
from choral.model.whisper import Whisper

Part = TypeVar("Part")

FEWEST_IN_LANE = 3  # windows whose step is worth a lane


class TorchRunner:
    name = "torch"

    @torch.inference_mode()
    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> None:
        device = pick_device(settings.device)
        self.device, self.compute_type = str(device), pick_compute_type(settings.compute_type, device)
        self._device, dtype = device, DTYPES[self.compute_type]
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self._tokenizer, self._dims = tokenizer, checkpoint.dims
        self._alignment_heads = checkpoint.alignment_heads
        self._network = Whisper.from_checkpoint(checkpoint, device, dtype)
        if self.compute_type == "int8":
            int8.quantize(self._network)
        self.capacity = capacity_of(checkpoint.dims, device, dtype, settings.slots)
        self._lanes = Lanes() if device.type == "cpu" else None
        if self._lanes:
            self.capacity = replace(self.capacity, n_lanes=self._lanes.n_lanes)
        n_slots = self.capacity.n_slots
        if self.compute_type == "int8" and half.is_fast_here():
            self._memory: Memory = HalfMemory(checkpoint.dims, n_slots)
        else:
            self._memory = Memory(checkpoint.dims, n_slots, device, dtype)
        self._rules = Rules(tokenizer, checkpoint.dims.n_vocab, n_slots, device)
        self._next_tokens = torch.zeros(n_slots, dtype=torch.long, device=device)
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
    def prefill(self, starts: Sequence[Start]) -> Sequence[Outcome]:
        """Runs all prompts in one pass, the short ones filled up at their end, where no earlier token looks."""
        prompts = [initial_tokens(start.work, self._tokenizer, self._dims.n_text_ctx) for start in starts]
        audio_slots = [start.slots[0] for start in starts]
        features = torch.stack([start.features for start in starts])
        self._network.decoder.hear(features, audio_slots, self._memory)
        rows = Rows.of(audio_slots, [0] * len(starts), [(slot, 1) for slot in audio_slots], self._device)
        states = self._network.decoder(self._padded(prompts), rows, self._memory)

        asked = [
            *(own[prompt.index(self._tokenizer.sot)] for own, prompt in zip(states, prompts, strict=True)),
            *(own[len(prompt) - 1] for own, prompt in zip(states, prompts, strict=True)),
        ]
        at_start, at_end = self._network.decoder.logits(torch.stack(asked)).chunk(2)
        no_speech = torch.softmax(at_start, dim=-1)[:, self._tokenizer.no_speech].tolist()
        decodings = [self._decoding(*each) for each in zip(starts, map(len, prompts), no_speech, strict=True)]
        counts = torch.tensor([len(decoding.search.rows) for decoding in decodings], device=self._device)
        logits = at_end.repeat_interleave(counts, dim=0)
        outcomes = self._choose(decodings, logits)
        self._decodings |= {decoding.slots[0]: decoding for decoding in decodings}
        return outcomes

    @torch.inference_mode()
    def decode(self, windows: Sequence[tuple[int, ...]]) -> Sequence[Outcome]:
        """One token further for all rows of these windows, in one pass through the network."""
        decodings = [self._decodings[slot] for slot in sorted(slots[0] for slots in windows)]  # neighbours together
        outcomes = self._choose(decodings, torch.cat(self._in_lanes(self._step, decodings)))
        by_slot = {decoding.slots[0]: outcome for decoding, outcome in zip(decodings, outcomes, strict=True)}
        return [by_slot[slots[0]] for slots in windows]

    def _in_lanes(self, action: Callable[[Sequence[Part]], Tensor], parts: Sequence[Part]) -> list[Tensor]:
        """Side by side where there are enough of them, as many in each lane."""
        if self._lanes is None or len(parts) < FEWEST_IN_LANE * self._lanes.n_lanes:
            return [action(parts)]
        n_each = -(-len(parts) // self._lanes.n_lanes)
        return self._lanes.map(action, [parts[start : start + n_each] for start in range(0, len(parts), n_each)])

    @torch.inference_mode()
    def _step(self, decodings: Sequence[Decoding]) -> Tensor:
        """The logits of all their rows, after the token each was given last."""
        slots = [slot for decoding in decodings for slot in decoding.row_slots]
        lengths = [decoding.length - 1 for decoding in decodings for _ in decoding.search.rows]
        hearers = [(decoding.slots[0], len(decoding.search.rows)) for decoding in decodings]
        rows = Rows.of(slots, lengths, hearers, self._device)
        states = self._network.decoder(self._next_tokens[rows.slots][:, None], rows, self._memory)
        return self._network.decoder.logits(states[:, -1])

    def release(self, slots: tuple[int, ...]) -> None:
        if slots:
            self._decodings.pop(slots[0], None)

    @torch.inference_mode()
    def align(self, known: Sequence[tuple[Any, Work[Any]]]) -> Sequence[Outcome]:
        return [answered(self._answer(features, work), self.compute_type) for features, work in known]

    def _answer(self, features: Tensor, work: Work[Any]) -> Aligned | Languages:
        match work:
            case Align():
                return self._align(features, work)
            case DetectLanguage():
                return self._detect_language(features)
            case other:
                raise TypeError(f"the engine does not know the work {other!r}")

    def _detect_language(self, features: Tensor) -> Languages:
        tokenizer = self._tokenizer
        if not tokenizer.is_multilingual:
            raise UsageError("this model knows English only and cannot detect languages")
        start = torch.tensor([[tokenizer.sot]], device=self._device)
        states, _ = self._network.decoder.forward_with_scores(start, features[None])
        logits = self._network.decoder.logits(states[0, 0])[list(tokenizer.language_tokens)]
        probabilities = torch.softmax(logits, dim=-1).tolist()
        return Languages(dict(zip(tokenizer.languages, probabilities, strict=True)))

    def _align(self, features: Tensor, work: Align) -> Aligned:
        """The cross-attention of a known text and the probability of each of its tokens."""
        tokenizer = self._tokenizer
        require_known(work.text_tokens, tokenizer)
        start = tokenizer.sot_sequence(work.language, work.task)
        sequence = [*start, tokenizer.no_timestamps, *work.text_tokens, tokenizer.eot]
        tokens = torch.tensor([sequence], device=self._device)
        states, scores = self._network.decoder.forward_with_scores(tokens, features[None])
        logits = self._network.decoder.logits(states[0, len(start) : -2])
        probs = torch.softmax(logits[:, : tokenizer.eot], dim=-1)
        text = torch.tensor(work.text_tokens, device=self._device)
        heads = torch.stack([scores[layer][0, head] for layer, head in self._alignment_heads])
        return Aligned(
            scores=heads.cpu().numpy(),
            n_start_tokens=len(start),
            token_probs=probs.gather(1, text[:, None])[:, 0].cpu().numpy(),
        )

    def _choose(self, decodings: Sequence[Decoding], logits: Tensor) -> list[Outcome]:
        """The next token of every row, by its window's rules and search; what was chosen is fed in the next step."""
        slots = torch.tensor([slot for decoding in decodings for slot in decoding.row_slots], device=self._device)
        self._rules.apply(logits, slots)
        outcomes: list[Outcome] = []
        fed: list[tuple[int, int, int]] = []  # source slot, slot, token
        for decoding, going_on in zip(decodings, self._advance(decodings, logits), strict=True):
            is_going_on = decoding.moved_on(going_on)
            outcomes.append(decoding.outcome(is_going_on=is_going_on, compute_type=self.compute_type))
            if is_going_on:
                places = decoding.slots
                fed += [(places[next.source_row], places[next.row], next.token) for next in going_on]
        if fed:
            self._feed(fed, max(decoding.length for decoding in decodings))
        return outcomes

    def _advance(self, decodings: Sequence[Decoding], logits: Tensor) -> list[list[Next]]:
        """Tells each search what was picked for its rows."""
        beams = [decoding.search for decoding in decodings if isinstance(decoding.search, BeamSearch)]
        borders = np.cumsum([0, *(len(decoding.search.rows) for decoding in decodings)])
        draws = [draw for decoding in decodings for draw in decoding.draws()]
        picked = pick(logits, draws)
        best = likeliest(logits, max(search.n_looked_at for search in beams)) if beams else None
        advanced = []
        for decoding, start, stop in zip(decodings, borders[:-1], borders[1:], strict=True):
            search = decoding.search
            if isinstance(search, BeamSearch):
                assert best is not None
                n = search.n_looked_at
                tokens = [row[:n] for row in best.tokens[start:stop]]
                advanced.append(search.advance(tokens, [row[:n] for row in best.logprobs[start:stop]]))
            else:
                advanced.append(search.advance(picked.tokens[start:stop], picked.logprobs[start:stop]))
        return advanced

    def _feed(self, fed: Sequence[tuple[int, int, int]], longest: int) -> None:
        numbers = torch.tensor(fed, device=self._device)
        moved = numbers[[source != slot for source, slot, _ in fed]]
        if len(moved):
            self._memory.copy(moved[:, 0], moved[:, 1], longest)
            self._rules.history.copy(moved[:, 0], moved[:, 1])
        self._next_tokens[numbers[:, 1]] = numbers[:, 2]
        self._rules.history.append(numbers[:, 1], numbers[:, 2])

    def _decoding(self, start: Start, n_prompt: int, no_speech_prob: float) -> Decoding:
        """A window takes its places; its beams or samples all start from the one prompt."""
        self._rules.begin(start.slots, start.work)
        if len(start.slots) > 1:
            others = torch.tensor(start.slots[1:], device=self._device)
            self._memory.copy(torch.full_like(others, start.slots[0]), others, n_prompt)
        return Decoding(start, n_prompt, no_speech_prob, self._tokenizer.eot, self._dims.n_text_ctx)

    def _padded(self, prompts: Sequence[list[int]]) -> Tensor:
        longest = max(map(len, prompts))
        filled = [[*prompt, *[self._tokenizer.eot] * (longest - len(prompt))] for prompt in prompts]
        return torch.tensor(filled, device=self._device)
