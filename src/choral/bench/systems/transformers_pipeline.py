"""Hugging Face's transformers: its speech recognition pipeline, with weights and vocabulary that Choral read.

Requests go one after another, or in batches that are put together beforehand; a long file is cut into windows that
overlap, as the pipeline does it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from choral.audio.constants import WINDOW_S
from choral.bench.clips import AudioFile, Samples
from choral.bench.load_generator import RoundResult, send_all, send_together
from choral.bench.systems.hugging_tokenizer import merges, split_vocabulary
from choral.bench.systems.spec import PeerConfig
from choral.model.checkpoint import Checkpoint
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint
from choral.model.weights.state_dict import openai_name

LAST_FIRST_TIMESTAMP = 50  # the first segment begins within a second, as everywhere else

Sent = tuple[Samples, str | None]


class Transformers:
    def __init__(self, spec: PeerConfig, pipeline: Any, *, is_multilingual: bool) -> None:
        self._spec, self._pipeline, self._is_multilingual = spec, pipeline, is_multilingual

    def run(self, requests: Sequence[AudioFile]) -> RoundResult:
        sent = [(request.samples(), request.language) for request in requests]
        if self._spec.batch_size:
            return send_together(self._transcribe, sent)
        return send_all(lambda own: self._transcribe([own])[0], sent, 1)

    def _transcribe(self, sent: Sequence[Sent]) -> Sequence[str]:
        """A call of the pipeline has one language for all."""
        return [
            text
            for language, group in groupby(sent, key=lambda own: own[1])
            for text in self._in_language([samples for samples, _ in group], language)
        ]

    def _in_language(self, sounds: list[Samples], language: str | None) -> list[str]:
        settings: dict[str, Any] = {"num_beams": 1, "do_sample": False}
        if self._is_multilingual:
            settings |= {"task": "transcribe", "language": language}
        found = self._pipeline(
            sounds,
            batch_size=self._spec.batch_size or 1,
            return_timestamps=self._spec.timestamps,
            chunk_length_s=WINDOW_S if self._spec.is_long else 0,
            generate_kwargs=settings,
        )
        return [own["text"] for own in found]


def open_system(spec: PeerConfig) -> Transformers:
    import torch

    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(spec.threads)
    checkpoint = open_checkpoint(Path(spec.model))
    text, special = split_vocabulary(checkpoint)
    vocabulary = {own: index for index, own in enumerate(text)}
    tokenizer = transformers.WhisperTokenizer(vocab=vocabulary, merges=merges(text), pad_token=special[0])
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    dtype = torch.float32 if spec.compute_type == "float32" else torch.float16
    pipeline = transformers.AutomaticSpeechRecognitionPipeline(
        model=make_model(checkpoint).to(spec.device, dtype),
        tokenizer=tokenizer,
        feature_extractor=transformers.WhisperFeatureExtractor(feature_size=checkpoint.dims.n_mels),
        device=torch.device(spec.device),
    )
    return Transformers(spec, pipeline, is_multilingual=checkpoint.dims.is_multilingual)


def make_model(checkpoint: Checkpoint) -> Any:
    """Its network with the tensors of any checkpoint."""
    import torch

    transformers: Any = importlib.import_module("transformers")
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    ids = {
        "bos_token_id": tokenizer.eot,
        "eos_token_id": tokenizer.eot,
        "pad_token_id": tokenizer.eot,
        "decoder_start_token_id": tokenizer.sot,
    }
    model = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(**ids, **config_settings(checkpoint.dims))
    ).eval()
    tensors = {
        name: torch.from_numpy(np.array(checkpoint.tensors[openai_name(name)], dtype=np.float32))
        for name in model.state_dict()
        if name != "proj_out.weight"  # the token embedding, once more
    }
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    model.generation_config = transformers.GenerationConfig(
        **ids, **generation_settings(tokenizer, checkpoint.dims.n_text_ctx)
    )
    return model


def config_settings(dims: ModelDims) -> dict[str, int]:
    return {
        "vocab_size": dims.n_vocab,
        "num_mel_bins": dims.n_mels,
        "d_model": dims.n_audio_state,
        "encoder_layers": dims.n_audio_layer,
        "encoder_attention_heads": dims.n_audio_head,
        "encoder_ffn_dim": 4 * dims.n_audio_state,
        "decoder_layers": dims.n_text_layer,
        "decoder_attention_heads": dims.n_text_head,
        "decoder_ffn_dim": 4 * dims.n_text_state,
        "max_source_positions": dims.n_audio_ctx,
        "max_target_positions": dims.n_text_ctx,
    }


def generation_settings(tokenizer: Tokenizer, n_text_ctx: int) -> dict[str, Any]:
    """Whisper's own rules, under the names of this library."""
    settings: dict[str, Any] = {
        "max_length": n_text_ctx,
        "suppress_tokens": list(tokenizer.suppressed((-1,))),
        "begin_suppress_tokens": [*tokenizer.encode(" "), tokenizer.eot],
        "no_timestamps_token_id": tokenizer.no_timestamps,
        "max_initial_timestamp_index": LAST_FIRST_TIMESTAMP,
        "prev_sot_token_id": tokenizer.sot_prev,
        "is_multilingual": tokenizer.is_multilingual,
        "return_timestamps": False,
    }
    if tokenizer.is_multilingual:
        languages = zip(tokenizer.languages, tokenizer.language_tokens, strict=True)
        settings["lang_to_id"] = {f"<|{code}|>": token for code, token in languages}
        settings["task_to_id"] = {"transcribe": tokenizer.transcribe, "translate": tokenizer.translate}
    return settings
