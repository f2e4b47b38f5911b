"""The ten numbers that define the shape of a Whisper model.

They are read from untrusted files and checked here, so that a `ModelDims` is safe to allocate memory by.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from choral.errors import ModelCorrupt

FIRST_MULTILINGUAL_VOCAB = 51_865

# Far above any known model, and low enough that a damaged number cannot exhaust the memory.
_MAX = {
    "n_mels": 1_024,
    "n_audio_ctx": 32_768,
    "n_audio_state": 16_384,
    "n_audio_head": 512,
    "n_audio_layer": 512,
    "n_vocab": 1_000_000,
    "n_text_ctx": 32_768,
    "n_text_state": 16_384,
    "n_text_head": 512,
    "n_text_layer": 512,
}


@dataclass(frozen=True)
class ModelDims:
    n_mels: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_vocab: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, max_value = getattr(self, field.name), _MAX[field.name]
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= max_value:
                kind = f"{value}"[:24] if isinstance(value, int | float) else f"a {type(value).__name__}"
                raise ModelCorrupt(f"{field.name} is {kind}; a Whisper model has 1 to {max_value}")
        if self.n_audio_state != self.n_text_state:
            raise ModelCorrupt(
                f"the encoder is {self.n_audio_state} wide and the decoder {self.n_text_state}: they must be equal"
            )
        for part, n_head in (("encoder", self.n_audio_head), ("decoder", self.n_text_head)):
            if self.n_audio_state % n_head:
                raise ModelCorrupt(f"{n_head} heads of the {part} do not divide its width {self.n_audio_state}")
        if self.n_audio_state % 2 or self.n_audio_state < 4:
            raise ModelCorrupt(f"the width of the model is {self.n_audio_state}; it must be even and at least 4")

    @property
    def is_multilingual(self) -> bool:
        return self.n_vocab >= FIRST_MULTILINGUAL_VOCAB

    @property
    def n_languages(self) -> int:
        """The number of language tokens in OpenAI's vocabulary of this size."""
        return self.n_vocab - 51_765 - int(self.is_multilingual)
