from __future__ import annotations

import base64
import dataclasses
import gzip

import numpy as np
import pytest
import whisper

from choral.model.alignment_heads import checked, for_model
from choral.model.dims import ModelDims

# width, encoder layers, decoder layers, mel bins, vocabulary: as OpenAI's model card has them
OFFICIAL = {
    "tiny.en": (384, 4, 4, 80, 51864),
    "tiny": (384, 4, 4, 80, 51865),
    "base.en": (512, 6, 6, 80, 51864),
    "base": (512, 6, 6, 80, 51865),
    "small.en": (768, 12, 12, 80, 51864),
    "small": (768, 12, 12, 80, 51865),
    "medium.en": (1024, 24, 24, 80, 51864),
    "medium": (1024, 24, 24, 80, 51865),
    "large-v1": (1280, 32, 32, 80, 51865),
    "large-v2": (1280, 32, 32, 80, 51865),
    "large-v3": (1280, 32, 32, 128, 51866),
    "large": (1280, 32, 32, 128, 51866),
    "large-v3-turbo": (1280, 32, 4, 128, 51866),
    "turbo": (1280, 32, 4, 128, 51866),
}


def dims_of(name: str) -> ModelDims:
    width, n_audio_layer, n_text_layer, n_mels, n_vocab = OFFICIAL[name]
    return ModelDims(n_mels, 1500, width, width // 64, n_audio_layer, n_vocab, 448, width, width // 64, n_text_layer)


def heads_of_reference(name: str) -> tuple[tuple[int, int], ...]:
    dims = dims_of(name)
    mask = np.frombuffer(gzip.decompress(base64.b85decode(whisper._ALIGNMENT_HEADS[name])), dtype=bool)
    return tuple((int(layer), int(head)) for layer, head in np.argwhere(mask.reshape(dims.n_text_layer, -1)))


def test_every_model_of_openai_whisper_is_listed() -> None:
    assert set(OFFICIAL) == set(whisper._ALIGNMENT_HEADS)


@pytest.mark.parametrize("name", OFFICIAL)
def test_heads_by_name(name: str) -> None:
    for hint in (name, f"whisper-{name}", f"ggml-{name}", f"faster-whisper-{name}", f"openai_whisper-{name}"):
        assert for_model(dims_of(name), hint) == heads_of_reference(name)


@pytest.mark.parametrize("name", OFFICIAL)
def test_heads_by_dims(name: str) -> None:
    expected = heads_of_reference("large-v2" if name == "large-v1" else name)
    assert for_model(dims_of(name)) == expected
    assert for_model(dims_of(name), "my-fine-tune") == expected


def test_name_is_ignored_when_dims_differ() -> None:
    assert for_model(dims_of("base"), "tiny") == heads_of_reference("base")


def test_unknown_shape_uses_second_half_of_layers() -> None:
    distilled = dataclasses.replace(dims_of("large-v3"), n_text_layer=2)
    assert for_model(distilled, "distil-large-v3") == tuple((1, head) for head in range(20))
    odd = dataclasses.replace(dims_of("tiny"), n_text_layer=3, n_text_head=2)
    assert for_model(odd) == ((1, 0), (1, 1), (2, 0), (2, 1))


@pytest.mark.parametrize(
    "pairs", [None, [], [[4, 0]], [[0, 6]], [[-1, 0]], [[0]], [["0", 1]], [0, 1], {"a": 1}, [[1, 2], 3]]
)
def test_invalid_pairs_are_rejected(pairs: object) -> None:
    assert checked(pairs, dims_of("tiny")) is None


def test_valid_pairs_are_accepted() -> None:
    assert checked([[3, 5], [0, 0]], dims_of("tiny")) == ((3, 5), (0, 0))
