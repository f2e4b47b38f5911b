"""Runs windows on the network with torch: encode, decode, detect the language, align.

Float32 on a CPU is the reference for everything else. A runner belongs to one thread, the engine's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from choral.config import EngineSettings
from choral.engine.rules import History, rules_for
from choral.engine.search import Search, best_candidate, search_for
from choral.engine.window import Align, Aligned, Decode, Decoded, Languages, WindowAudio
from choral.errors import UsageError, WindowFailed
from choral.model.checkpoint import Checkpoint
from choral.model.decoder import CrossMemory, SelfMemory
from choral.model.tokenizer import Tokenizer
from choral.model.whisper import Whisper

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class TorchRunner:
    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> None:
        self.device = pick_device(settings.device)
        compute_type = settings.compute_type
        if compute_type == "auto":
            compute_type = "float16" if self.device.type == "cuda" else "float32"
        self.compute_type = compute_type
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.tokenizer = tokenizer
        self.alignment_heads = checkpoint.alignment_heads
        self.network = Whisper.from_checkpoint(checkpoint, self.device, DTYPES[compute_type])
        self.dims = checkpoint.dims

    @torch.inference_mode()
    def encode(self, mels: npt.NDArray[np.float32]) -> Tensor:  # [n, n_mels, 3000] → [n, frames, state]
        dtype = self.network.encoder.conv1.weight.dtype
        features: Tensor = self.network.encoder(torch.from_numpy(mels).to(self.device, dtype))
        return features

    @torch.inference_mode()
    def detect_language(self, features: Tensor) -> Languages:
        if not self.tokenizer.is_multilingual:
            raise UsageError("this model knows English only and cannot detect languages")
        heard = self.network.decoder.hear(features)
        start = torch.tensor([[self.tokenizer.sot]], device=self.device)
        states = self.network.decoder(start, SelfMemory.empty(self.dims, features), heard)
        logits = self.network.decoder.logits(states[0, 0])[list(self.tokenizer.language_tokens)]
        probabilities = torch.softmax(logits, dim=-1).tolist()
        return Languages(dict(zip(self.tokenizer.languages, probabilities, strict=True)))

    @torch.inference_mode()
    def decode(self, features: Tensor, work: Decode, audio: WindowAudio, before_token: Callable[[], None]) -> Decoded:
        """`before_token` is called before every step, and may raise to end the work."""
        heard = self.network.decoder.hear(features)
        initial = self.initial_tokens(work)
        memory = SelfMemory.empty(self.dims, features)
        states = self.network.decoder(torch.tensor([initial], device=self.device), memory, heard)
        no_speech_prob = self.no_speech_prob(states[0, initial.index(self.tokenizer.sot)])
        search = search_for(work, self.tokenizer.eot, window_seed(work, audio), self.device)
        logits = self.network.decoder.logits(states[:, -1]).repeat_interleave(search.n_rows, dim=0)
        self.search(search, work, logits, memory.repeated(search.n_rows), heard, before_token)
        best = best_candidate(search, work.length_penalty)
        if math.isnan(best.sum_logprob) or math.isnan(no_speech_prob):
            raise WindowFailed(
                f"the model answered with numbers that are not numbers in {self.compute_type}; "
                "use --compute-type float32, and fetch the model again if that does not help"
            )
        return Decoded(best.tokens, best.avg_logprob, no_speech_prob)

    def search(
        self,
        search: Search,
        work: Decode,
        logits: Tensor,
        memory: SelfMemory,
        heard: CrossMemory,
        before_token: Callable[[], None],
    ) -> None:
        """Token after token, until the search is content or there is no room for more."""
        rules = rules_for(work, self.tokenizer, self.dims.n_vocab, self.device)
        history = History.empty(search.n_rows, self.device)
        for _ in range(work.max_tokens or self.dims.n_text_ctx // 2):
            before_token()
            for rule in rules:
                rule.apply(logits, history)
            choice = search.advance(logits)
            if choice.is_complete or memory.length >= self.dims.n_text_ctx:
                return
            if choice.source_rows is not None:
                memory.select_rows(choice.source_rows)
                history.select_rows(choice.source_rows)
            history.append(choice.tokens, self.tokenizer.timestamp_begin)
            states = self.network.decoder(choice.tokens[:, None], memory, heard)
            logits = self.network.decoder.logits(states[:, -1])

    @torch.inference_mode()
    def align(self, features: Tensor, work: Align) -> Aligned:
        """The cross-attention of a known text and the probability of each of its tokens."""
        tokenizer = self.tokenizer
        start = tokenizer.sot_sequence(work.language, work.task)
        sequence = [*start, tokenizer.no_timestamps, *work.text_tokens, tokenizer.eot]
        tokens = torch.tensor([sequence], device=self.device)
        heard = self.network.decoder.hear(features)
        states, scores = self.network.decoder.forward_with_scores(tokens, heard)
        logits = self.network.decoder.logits(states[0, len(start) : -2])
        probs = torch.softmax(logits[:, : tokenizer.eot], dim=-1)
        text = torch.tensor(work.text_tokens, device=self.device)
        heads = torch.stack([scores[layer][head] for layer, head in self.alignment_heads])
        return Aligned(
            scores=heads.cpu().numpy(),
            n_start_tokens=len(start),
            token_probs=probs.gather(1, text[:, None])[:, 0].cpu().numpy(),
        )

    def initial_tokens(self, work: Decode) -> list[int]:
        """Prompt, start of transcript, prefix: all that the decoder is given before it speaks itself."""
        tokenizer = self.tokenizer
        half = self.dims.n_text_ctx // 2
        prompt = [tokenizer.sot_prev, *work.prompt[-(half - 1) :]] if work.prompt else []
        start = tokenizer.sot_sequence(work.language, work.task)
        if not work.timestamps:
            start = (*start, tokenizer.no_timestamps)
        room = half - work.max_tokens if work.max_tokens and work.max_tokens < half else half // 2
        return [*prompt, *start, *work.prefix[-min(room, half - 8) :]]

    def no_speech_prob(self, state: Tensor) -> float:
        probs = torch.softmax(self.network.decoder.logits(state), dim=-1)
        return float(probs[self.tokenizer.no_speech])


def window_seed(work: Decode, audio: WindowAudio) -> int:
    """A seed of the window's own: its samples do not depend on what else was decoded, or in which order."""
    digest = hashlib.blake2b(audio.key, digest_size=8)
    digest.update(repr((work.seed, work.temperature, work.prompt, work.prefix)).encode())
    return int.from_bytes(digest.digest(), "big") >> 1


def pick_device(name: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    if name.startswith("cuda") and not has_cuda:
        raise UsageError(f"device {name}: torch finds no CUDA device here; use --device cpu, or auto")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device {name}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device
