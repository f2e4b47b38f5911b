"""Hugging Face's transformers: its speech recognition pipeline, with weights and vocabulary that Choral has read.

Requests run one after another, or in batches that are formed beforehand; a long file is cut into overlapping windows,
as the pipeline does it. Nothing is downloaded: the tokenizer, like faster-whisper's, is built from Choral's vocabulary.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from choral.audio.constants import WINDOW_S
from choral.bench.clips import Samples
from choral.bench.peers import ClipInput, PeerConfig, Recognized
from choral.model.checkpoint import Checkpoint
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint
from choral.model.weights.state_dict import openai_name
from choral.model.weights.vocabulary import to_characters

MAX_INITIAL_TIMESTAMP_INDEX = 50  # the first segment begins within a second, as in the other libraries


class TransformersPeer:
    def __init__(self, config: PeerConfig) -> None:
        import torch

        transformers: Any = importlib.import_module("transformers")
        if config.threads:
            torch.set_num_threads(config.threads)
        checkpoint = open_checkpoint(Path(config.model))
        text, special = split_vocabulary(checkpoint)
        vocabulary = {token: index for index, token in enumerate(text)}
        tokenizer = transformers.WhisperTokenizer(vocab=vocabulary, merges=merges(text), pad_token=special[0])
        tokenizer.add_special_tokens({"additional_special_tokens": special})
        dtype = torch.float32 if config.compute_type == "float32" else torch.float16
        self._config, self._is_multilingual = config, checkpoint.dims.is_multilingual
        self._pipeline = transformers.AutomaticSpeechRecognitionPipeline(
            model=make_model(checkpoint).to(config.device, dtype),
            tokenizer=tokenizer,
            feature_extractor=transformers.WhisperFeatureExtractor(feature_size=checkpoint.dims.n_mels),
            device=torch.device(config.device),
        )

    def transcribe(self, samples: Samples, language: str | None) -> Recognized:
        return Recognized(self._transcribe_in([samples], language)[0], language or "en")

    def transcribe_batch(self, clips: Sequence[ClipInput]) -> list[str]:
        """One call of the pipeline for each run of clips in the same language."""
        return [
            text
            for language, group in groupby(clips, key=lambda clip: clip[1])
            for text in self._transcribe_in([samples for samples, _ in group], language)
        ]

    def _transcribe_in(self, clips: list[Samples], language: str | None) -> list[str]:
        settings: dict[str, Any] = {"num_beams": 1, "do_sample": False}
        if self._is_multilingual:
            settings |= {"task": "transcribe", "language": language}
        results = self._pipeline(
            clips,
            batch_size=self._config.batch_size or 1,
            return_timestamps=self._config.timestamps,
            chunk_length_s=WINDOW_S if self._config.is_long else 0,
            generate_kwargs=settings,
        )
        return [result["text"] for result in results]


def make_model(checkpoint: Checkpoint) -> Any:
    """The library's network with the tensors of a checkpoint."""
    import torch

    transformers: Any = importlib.import_module("transformers")
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.eot)
    ids["decoder_start_token_id"] = tokenizer.sot
    config = transformers.WhisperConfig(**ids, **config_settings(checkpoint.dims))
    model = transformers.WhisperForConditionalGeneration(config).eval()
    tensors = {
        name: torch.from_numpy(np.array(checkpoint.tensors[openai_name(name)], dtype=np.float32))
        for name in model.state_dict()
        if name != "proj_out.weight"  # tied to the token embedding
    }
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    settings = generation_settings(tokenizer, checkpoint.dims.n_text_ctx)
    model.generation_config = transformers.GenerationConfig(**ids, **settings)
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
    """Whisper's decoding rules under the names of this library."""
    settings: dict[str, Any] = {
        "max_length": n_text_ctx,
        "suppress_tokens": list(tokenizer.suppressed((-1,))),
        "begin_suppress_tokens": [*tokenizer.encode(" "), tokenizer.eot],
        "no_timestamps_token_id": tokenizer.no_timestamps,
        "max_initial_timestamp_index": MAX_INITIAL_TIMESTAMP_INDEX,
        "prev_sot_token_id": tokenizer.sot_prev,
        "is_multilingual": tokenizer.is_multilingual,
        "return_timestamps": False,
    }
    if tokenizer.is_multilingual:
        languages = zip(tokenizer.languages, tokenizer.language_tokens, strict=True)
        settings["lang_to_id"] = {f"<|{code}|>": token for code, token in languages}
        settings["task_to_id"] = {"transcribe": tokenizer.transcribe, "translate": tokenizer.translate}
    return settings


def make_tokenizer(checkpoint: Checkpoint) -> Any:
    """A `tokenizers.Tokenizer`: it needs the merge that formed each token, where Choral has tiktoken's ranks."""
    package: Any = importlib.import_module("tokenizers")
    text, special = split_vocabulary(checkpoint)
    vocabulary = {token: index for index, token in enumerate(text)}
    tokenizer = package.Tokenizer(package.models.BPE(vocab=vocabulary, merges=merges(text)))
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    tokenizer.add_special_tokens([package.AddedToken(name, special=True, normalized=False) for name in special])
    return tokenizer


def split_vocabulary(checkpoint: Checkpoint) -> tuple[list[str], list[str]]:
    """The text tokens, one character for each byte, and the names of the special tokens, in order of their ids."""
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    text = [tokenizer._encoding.decode_single_token_bytes(token) for token in range(tokenizer.n_text)]
    special = [tokenizer.decode_with_timestamps([token]) for token in range(tokenizer.n_text, tokenizer.n_vocab)]
    return [to_characters(token) for token in text], special


def merges(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """The two parts of each token of more than one byte."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    pairs = (last_merge(token, ranks) for token in tokens if len(token) > 1)
    return [pair for pair in pairs if pair is not None]


def last_merge(token: str, ranks: Mapping[str, int]) -> tuple[str, str] | None:
    """Merge in order of rank, with ranks below the token's, until two parts remain; None if that fails."""
    parts = list(token)
    while len(parts) > 2:
        pairs = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
        first = min(range(len(pairs)), key=pairs.__getitem__)
        if pairs[first] >= ranks[token]:
            return None
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts[0], parts[1]
