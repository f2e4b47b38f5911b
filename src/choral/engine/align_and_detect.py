"""Alignment of a known text and language detection: one forward pass from encoder features, without slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from choral.engine.decoding import finished, require_tokens
from choral.engine.steps import Outcome
from choral.engine.window import Aligned, AlignParams, DetectLanguageParams, Languages, Params
from choral.errors import UsageError
from choral.model.tokenizer import Tokenizer
from choral.model.whisper import TextDecoder


class AlignAndDetect:
    def __init__(
        self, decoder: TextDecoder, tokenizer: Tokenizer, alignment_heads: Sequence[tuple[int, int]], compute_type: str
    ) -> None:
        self._decoder, self._tokenizer = decoder, tokenizer
        self._alignment_heads, self._compute_type = alignment_heads, compute_type

    def __call__(self, inputs: Sequence[tuple[Any, Params[Any]]]) -> list[Outcome]:
        return [finished(self._run(features, params), self._compute_type) for features, params in inputs]

    def _run(self, features: Tensor, params: Params[Any]) -> Aligned | Languages:
        match params:
            case AlignParams():
                return self._align(features, params)
            case DetectLanguageParams():
                return self._detect_language(features)
            case other:
                raise TypeError(f"unknown window parameters: {other!r}")

    def _detect_language(self, features: Tensor) -> Languages:
        tokenizer = self._tokenizer
        if not tokenizer.is_multilingual:
            raise UsageError("this model is English-only and cannot detect languages")
        start = torch.tensor([[tokenizer.sot]], device=features.device)
        states, _ = self._decoder.forward_with_scores(start, features[None])
        logits = self._decoder.logits(states[0, 0])[list(tokenizer.language_tokens)]
        probabilities = torch.softmax(logits, dim=-1).tolist()
        return Languages(dict(zip(tokenizer.languages, probabilities, strict=True)))

    def _align(self, features: Tensor, params: AlignParams) -> Aligned:
        """The cross-attention scores of the text and the probability of each of its tokens."""
        tokenizer = self._tokenizer
        require_tokens(params.text_tokens, tokenizer)
        start = tokenizer.sot_sequence(params.language, params.task)
        sequence = [*start, tokenizer.no_timestamps, *params.text_tokens, tokenizer.eot]
        tokens = torch.tensor([sequence], device=features.device)
        states, scores = self._decoder.forward_with_scores(tokens, features[None])
        logits = self._decoder.logits(states[0, len(start) : -2])
        probs = torch.softmax(logits[:, : tokenizer.eot], dim=-1)
        text = torch.tensor(params.text_tokens, device=features.device)
        heads = torch.stack([scores[layer][0, head] for layer, head in self._alignment_heads])
        return Aligned(
            scores=heads.cpu().numpy(),
            n_start_tokens=len(start),
            token_probs=probs.gather(1, text[:, None])[:, 0].cpu().numpy(),
        )
