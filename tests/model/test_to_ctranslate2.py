"""Conversion to CTranslate2: the same weights, and the same results of the runtime itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import torch
import whisper

from choral.audio.recording import Recording
from choral.model.checkpoint import Checkpoint
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint
from random_model import random_checkpoint
from small_models import SHAPES, convert_to

SETTINGS = ("alignment_heads", "lang_ids", "suppress_ids", "suppress_ids_begin")


def load(folder: Path) -> ctranslate2.models.Whisper:
    return ctranslate2.models.Whisper(str(folder), device="cpu", compute_type="float32", intra_threads=1)


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    return Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)


def oracle_of(checkpoint: Checkpoint) -> whisper.model.Whisper:
    oracle = whisper.model.Whisper(whisper.model.ModelDimensions(**dataclasses.asdict(checkpoint.dims)))
    tensors = checkpoint.tensors
    oracle.load_state_dict({name: torch.tensor(np.asarray(tensors[name], dtype=np.float32)) for name in tensors})
    return oracle.eval()


def mel_of(audio: Path, n_mels: int) -> torch.Tensor:
    with Recording.open(audio) as recording:
        samples = torch.tensor(recording.samples(0, recording.n_samples))
    mel: torch.Tensor = whisper.log_mel_spectrogram(whisper.pad_or_trim(samples), n_mels)
    return mel


def features_of(audio: Path, n_mels: int) -> ctranslate2.StorageView:
    return ctranslate2.StorageView.from_array(mel_of(audio, n_mels).numpy()[None])


@dataclasses.dataclass(frozen=True)
class RuntimeResults:
    tokens: list[int]
    scores: list[float]
    no_speech_prob: float
    path: list[tuple[int, int]]
    languages: list[tuple[str, float]]


def runtime_results(folder: Path, audio: Path) -> RuntimeResults:
    """What CTranslate2 computes for this audio, with the folder's own settings."""
    model = load(folder)
    tokenizer = tokenizer_of(open_checkpoint(folder))
    features = model.encode(features_of(audio, model.n_mels))
    start = list(tokenizer.sot_sequence("en", "transcribe"))
    [decoded] = model.generate(
        features, [start], beam_size=1, return_scores=True, return_no_speech_prob=True, suppress_tokens=[-1]
    )
    tokens = decoded.sequences_ids[0]
    text = [token for token in tokens if token < tokenizer.eot]
    [aligned] = model.align(features, start, [text], 1100)
    languages = model.detect_language(features)[0] if model.is_multilingual else []
    return RuntimeResults(tokens, decoded.scores, decoded.no_speech_prob, aligned.alignments, languages)


def test_openai_pt_converts_to_the_published_folder(
    tiny_en_pt: Path, tiny_en_ct2: Path, jfk: Path, tmp_path: Path
) -> None:
    folder = convert_to(tmp_path / "converted", open_checkpoint(tiny_en_pt))
    assert (folder / "model.bin").read_bytes() == (tiny_en_ct2 / "model.bin").read_bytes()
    assert runtime_results(folder, jfk) == runtime_results(tiny_en_ct2, jfk)


def test_ctranslate2_folder_converts_to_itself(base_ct2: Path, jfk: Path, tmp_path: Path) -> None:
    folder = convert_to(tmp_path / "converted", open_checkpoint(base_ct2))
    assert (folder / "model.bin").read_bytes() == (base_ct2 / "model.bin").read_bytes()
    own, published = (json.loads((path / "config.json").read_text()) for path in (folder, base_ct2))
    assert {name: own[name] for name in SETTINGS} == {name: published[name] for name in SETTINGS}
    names = (base_ct2 / "vocabulary.txt").read_text().replace("<|nocaptions|>", "<|nospeech|>").split("\n")[:-1]
    assert json.loads((folder / "vocabulary.json").read_text()) == names
    assert runtime_results(folder, jfk) == runtime_results(base_ct2, jfk)


def test_converted_ggml_file_transcribes(tiny_ggml: Path, jfk: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_ggml)
    folder = convert_to(tmp_path / "converted", checkpoint)
    again = open_checkpoint(folder)
    assert again.alignment_heads == checkpoint.alignment_heads
    assert again.vocabulary is not None
    assert again.vocabulary[: len(checkpoint.vocabulary or ())] == checkpoint.vocabulary
    for name in checkpoint.tensors:
        assert np.array_equal(again.tensors[name], checkpoint.tensors[name]), name
    found = runtime_results(folder, jfk)
    options = whisper.DecodingOptions(language="en", fp16=False)
    expected = whisper.decode(oracle_of(checkpoint), mel_of(jfk, checkpoint.dims.n_mels), options)
    assert found.tokens == expected.tokens
    assert "ask not what your country can do for you" in expected.text
    assert found.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=1e-4)
    assert found.languages[0][0] == "<|en|>"


@pytest.mark.parametrize("dims", SHAPES.values(), ids=SHAPES.keys())
def test_models_of_other_shapes(dims: ModelDims, jfk: Path, tmp_path: Path) -> None:
    """The runtime against openai-whisper with the same random weights."""
    checkpoint = random_checkpoint(dims)
    folder = convert_to(tmp_path / "converted", checkpoint)
    model, tokenizer = load(folder), tokenizer_of(checkpoint)
    assert (model.n_mels, model.is_multilingual) == (dims.n_mels, dims.is_multilingual)
    oracle = oracle_of(checkpoint)
    mel = mel_of(jfk, dims.n_mels)
    features = model.encode(ctranslate2.StorageView.from_array(mel.numpy()[None]))
    with torch.inference_mode():
        expected = oracle.embed_audio(mel[None])
        assert np.asarray(features) == pytest.approx(expected.numpy(), abs=2e-3)
        logits = oracle.logits(torch.tensor([[tokenizer.sot]]), expected)[0, 0].double().numpy()
    [decoded] = model.generate(
        features, [[tokenizer.sot]], beam_size=1, max_length=2, return_logits_vocab=True, suppress_tokens=[-1]
    )
    found = np.asarray(decoded.logits[0][0])
    suppressed = json.loads((folder / "config.json").read_text())["suppress_ids"]
    assert set(range(tokenizer.timestamp_begin + 1501, dims.n_vocab)) <= set(suppressed)
    allowed = slice(tokenizer.timestamp_begin, tokenizer.timestamp_begin + 51)  # what a text may start with
    assert found[allowed] == pytest.approx(logits[allowed], abs=2e-3)
    [aligned] = model.align(features, list(tokenizer.sot_sequence("en", "transcribe")), [[100, 200, 300]], 1100)
    assert len(aligned.text_token_probs) == 3
    assert aligned.alignments[-1] == (3, 549)
    if dims.is_multilingual:
        assert len(model.detect_language(features)[0]) == len(tokenizer.languages)


def test_float16_stays_float16(tmp_path: Path) -> None:
    dims = SHAPES["English only, three heads"]
    whole = random_checkpoint(dims)
    half = dataclasses.replace(whole, tensors={name: t.astype(np.float16) for name, t in whole.tensors.items()})
    again = open_checkpoint(convert_to(tmp_path / "converted", half))
    for name in half.tensors:
        assert again.tensors[name].dtype == np.float16
        assert np.array_equal(again.tensors[name], half.tensors[name])
