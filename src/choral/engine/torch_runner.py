"""Runs windows on the network with torch: encode, decode, detect the language, align.

Float32 on a CPU is the reference for everything else. A runner belongs to one thread, the engine's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from choral.config import EngineSettings
from choral.engine.decoding import Decoding
from choral.engine.window import Align, Aligned, Decode, Decoded, Languages, WindowAudio
from choral.errors import UsageError, WindowFailed
from choral.model.checkpoint import Checkpoint
from choral.model.decoder import Group, SelfMemory
from choral.model.tokenizer import Tokenizer
from choral.model.whisper import Whisper

# More rows than this gain a CPU nothing, and make each of them wait longer for its next token.
MOST_SLOTS = {"cpu": 16, "cuda": 64}
SHARE_OF_FREE_MEMORY = 0.25
# A CPU is busy with one window; a GPU wants many, up to the budget of 32,768 frames.
ENCODE_TOGETHER = {"cpu": 2, "cuda": 21}
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
        self.n_slots = max(1, min(MOST_SLOTS[self.device.type], free_bytes(self.device) // self.slot_bytes()))
        self.encode_together = ENCODE_TOGETHER[self.device.type]

    def slot_bytes(self) -> int:
        """The memory of one row: keys and values of its audio and of its text."""
        dims = self.dims
        positions = dims.n_audio_ctx + dims.n_text_ctx
        return dims.n_text_layer * 2 * positions * dims.n_text_state * DTYPES[self.compute_type].itemsize

    @torch.inference_mode()
    def encode(self, mels: npt.NDArray[np.float32]) -> Tensor:  # [n, n_mels, 3000] → [n, frames, state]
        dtype = self.network.encoder.conv1.weight.dtype
        features: Tensor = self.network.encoder(torch.from_numpy(mels).to(self.device, dtype))
        return features

    @torch.inference_mode()
    def detect_language(self, features: Tensor) -> Languages:
        if not self.tokenizer.is_multilingual:
            raise UsageError("this model knows English only and cannot detect languages")
        group = Group(SelfMemory.empty(self.dims, features), self.network.decoder.hear(features))
        start = torch.tensor([[self.tokenizer.sot]], device=self.device)
        states = self.network.decoder(start, [group])
        logits = self.network.decoder.logits(states[0, 0])[list(self.tokenizer.language_tokens)]
        probabilities = torch.softmax(logits, dim=-1).tolist()
        return Languages(dict(zip(self.tokenizer.languages, probabilities, strict=True)))

    @torch.inference_mode()
    def start(self, features: Tensor, work: Decode, audio: WindowAudio) -> Decoding:
        """Runs the prompt of a window: after that it is ready for its first choice."""
        initial = self.initial_tokens(work)
        prompt = Group(SelfMemory.empty(self.dims, features), self.network.decoder.hear(features))
        states = self.network.decoder(torch.tensor([initial], device=self.device), [prompt])
        no_speech_prob = self.no_speech_prob(states[0, initial.index(self.tokenizer.sot)])
        logits = self.network.decoder.logits(states[:, -1])
        return Decoding(work, audio, self.tokenizer, prompt, logits, no_speech_prob, self.dims.n_text_ctx)

    @torch.inference_mode()
    def choose(self, decoding: Decoding) -> bool:
        return decoding.choose()

    @torch.inference_mode()
    def step(self, decodings: Sequence[Decoding]) -> None:
        """One token further for all rows of all windows, in one pass through the network."""
        tokens = torch.cat([decoding.tokens for decoding in decodings])
        states = self.network.decoder(tokens[:, None], [decoding.group for decoding in decodings])
        logits = self.network.decoder.logits(states[:, -1])
        sizes = [decoding.group.n_rows for decoding in decodings]
        for decoding, own in zip(decodings, torch.split(logits, sizes), strict=True):
            decoding.logits = own

    def finish(self, decoding: Decoding) -> Decoded:
        best = decoding.best()
        if math.isnan(best.sum_logprob) or math.isnan(decoding.no_speech_prob):
            raise WindowFailed(
                f"the model answered with numbers that are not numbers in {self.compute_type}; "
                "use --compute-type float32, and fetch the model again if that does not help"
            )
        return Decoded(best.tokens, best.avg_logprob, decoding.no_speech_prob)

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


def free_bytes(device: torch.device) -> int:
    """How much memory the slots may take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4 << 30
    return int(free * SHARE_OF_FREE_MEMORY)
