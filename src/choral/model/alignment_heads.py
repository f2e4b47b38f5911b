"""Which cross-attention heads are aligned with the audio: word timestamps are computed from these.

OpenAI published the heads of its models. A fine-tune uses those of the model it was made from; a model of another
shape uses all heads of the second half of its decoder layers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from choral.model.dims import ModelDims

Heads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Official:
    n_mels: int
    n_audio_state: int
    n_audio_layer: int
    n_vocab: int
    n_text_layer: int
    heads_of_layer: dict[int, tuple[int, ...]]

    def fits(self, dims: ModelDims) -> bool:
        return (dims.n_mels, dims.n_audio_state, dims.n_audio_layer, dims.n_vocab, dims.n_text_layer) == (
            self.n_mels,
            self.n_audio_state,
            self.n_audio_layer,
            self.n_vocab,
            self.n_text_layer,
        ) and dims.n_text_head == self.n_audio_state // 64

    @property
    def pairs(self) -> Heads:
        return tuple((layer, head) for layer, heads in self.heads_of_layer.items() for head in heads)


# Of two models with the same dims, the newer one comes later.
_OFFICIAL = {
    "tiny.en": _Official(80, 384, 4, 51864, 4, {1: (0,), 2: (0, 5), 3: (0, 1, 2, 3, 4)}),
    "tiny": _Official(80, 384, 4, 51865, 4, {2: (2,), 3: (0, 2, 3, 4, 5)}),
    "base.en": _Official(80, 512, 6, 51864, 6, {3: (3,), 4: (7,), 5: (1, 5, 7)}),
    "base": _Official(80, 512, 6, 51865, 6, {3: (1,), 4: (2, 3, 7), 5: (1, 2, 4, 6)}),
    "small.en": _Official(
        80, 768, 12, 51864, 12,
        {6: (6,), 7: (0, 3, 8), 8: (2, 5, 7), 9: (0, 4, 8, 10), 10: (0, 1, 2, 3, 6, 11), 11: (2, 4)},
    ),
    "small": _Official(80, 768, 12, 51865, 12, {5: (3, 9), 8: (0, 4, 7, 8), 9: (0, 7, 9), 10: (5,)}),
    "medium.en": _Official(
        80, 1024, 24, 51864, 24,
        {
            11: (4,), 14: (1, 12, 14), 15: (4,), 16: (0, 4, 9), 17: (12, 14), 18: (7, 10, 15), 20: (0, 3, 9, 14),
            21: (12,),
        },
    ),
    "medium": _Official(80, 1024, 24, 51865, 24, {13: (15,), 15: (4, 15), 16: (1,), 20: (0,), 23: (4,)}),
    "large-v1": _Official(80, 1280, 32, 51865, 32, {9: (19,), 11: (2, 4, 17), 22: (7, 11, 17), 23: (2, 15)}),
    "large-v2": _Official(
        80, 1280, 32, 51865, 32,
        {
            10: (12,), 13: (17,), 16: (11, 12, 13), 17: (15, 16), 18: (4, 11, 19), 19: (11,), 21: (2, 3),
            22: (3, 9, 12), 23: (5, 7, 13), 25: (5,), 26: (1, 12), 27: (15,),
        },
    ),
    "large-v3": _Official(
        128, 1280, 32, 51866, 32,
        {7: (0,), 10: (17,), 12: (18,), 13: (12,), 16: (1,), 17: (14,), 19: (11,), 21: (4,), 24: (1,), 25: (6,)},
    ),
    "large-v3-turbo": _Official(128, 1280, 32, 51866, 4, {2: (4, 11), 3: (3, 6, 11, 14)}),
}  # fmt: skip

_ALIASES = {"large": "large-v3", "turbo": "large-v3-turbo"}
_PACKAGING = re.compile(r"^(?:.*[-_])?(?:whisper|ggml)[-_]")  # ggml-base.en, faster-whisper-small, whisper-tiny


def for_model(dims: ModelDims, name_hint: str | None = None) -> Heads:
    """The heads of the official model that the file or folder is named after, else of the one with these dims."""
    if name_hint is not None:
        name = _PACKAGING.sub("", name_hint.lower())
        named = _OFFICIAL.get(_ALIASES.get(name, name))
        if named is not None and named.fits(dims):
            return named.pairs
    fitting = [model for model in _OFFICIAL.values() if model.fits(dims)]
    return fitting[-1].pairs if fitting else _last_half(dims)


def checked(pairs: object, dims: ModelDims) -> Heads | None:
    """The (layer, head) pairs of a model's configuration, or None where they do not fit these dims.

    Distilled models are published with the list of their teacher, which has more layers.
    """
    if not isinstance(pairs, list) or not pairs:
        return None
    heads = tuple(tuple(pair) for pair in pairs if isinstance(pair, list))
    for pair in heads:
        if len(pair) != 2 or not all(type(number) is int for number in pair):
            return None
        if not (0 <= pair[0] < dims.n_text_layer and 0 <= pair[1] < dims.n_text_head):
            return None
    return heads if len(heads) == len(pairs) else None


def _last_half(dims: ModelDims) -> Heads:
    layers = range(dims.n_text_layer // 2, dims.n_text_layer)
    return tuple((layer, head) for layer in layers for head in range(dims.n_text_head))
