"""Arguments of faster-whisper's `transcribe` as Choral's options.

What changes a text and has no counterpart raises `UsageError`; what only moves the cuts between windows warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from choral.compat.arguments import read_clips, read_temperatures
from choral.compat.faster_whisper.results import TranscriptionOptions, VadOptions
from choral.compat.faster_whisper.vad import WINDOW_S, read_vad, vad_settings
from choral.errors import UsageError
from choral.model.tokenizer import Tokenizer
from choral.options import Mode, TranscribeOptions

SAME_NAMES = (
    "task", "beam_size", "best_of", "patience", "compression_ratio_threshold", "no_speech_threshold",
    "condition_on_previous_text", "prefix", "suppress_blank", "max_initial_timestamp", "word_timestamps",
    "prepend_punctuations", "append_punctuations",
)  # fmt: skip
NEW_NAMES = {
    "log_prob_threshold": "logprob_threshold",
    "prompt_reset_on_temperature": "prompt_reset_temperature",
    "max_new_tokens": "max_tokens",
}
# faster-whisper's values that leave the text as it is; Choral has no others.
NEUTRAL = {"length_penalty": 1, "repetition_penalty": 1, "no_repeat_ngram_size": 0}


@dataclass(frozen=True)
class MappedOptions:
    options: TranscribeOptions
    given: TranscriptionOptions  # for the caller's information
    vad: VadOptions | None  # None: without voice detection


def map_options(arguments: Mapping[str, Any], mode: Mode, tokenizer: Tokenizer) -> MappedOptions:
    for name, neutral in NEUTRAL.items():
        if arguments[name] != neutral:
            raise UsageError(f"{name} is {arguments[name]}; Choral has no such option: leave it at {neutral}")
    if arguments["chunk_length"] not in (None, WINDOW_S):
        warnings.warn("chunk_length has no effect: windows have up to 30 s", stacklevel=4)
    clips = read_clips(arguments["clip_timestamps"])
    vad = None
    if arguments["vad_filter"] and not clips:
        vad = read_vad(arguments["vad_parameters"], is_batched=mode == "batched")
    is_multilingual = arguments["multilingual"] and tokenizer.is_multilingual
    options = TranscribeOptions.of(
        mode=mode,
        language=None if is_multilingual else arguments["language"],
        multilingual=is_multilingual,
        vad=vad is not None,
        clip_timestamps=clips,
        temperature=read_temperatures(arguments["temperature"]),
        timestamps=not arguments["without_timestamps"],
        suppress_tokens=tuple(arguments["suppress_tokens"] or ()),
        **_texts(arguments, tokenizer),
        **{name: arguments[name] for name in SAME_NAMES},
        **{new: arguments[name] for name, new in NEW_NAMES.items()},
        **(vad_settings(vad) if vad else {}),
    )
    return MappedOptions(options, _given(arguments, options, tokenizer), vad)


def _texts(arguments: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Prompts, as faster-whisper uses them: hotwords are text in the prompt, and not used beside a prefix."""
    silence_s = arguments["hallucination_silence_threshold"]
    return {
        "initial_prompt": _prompt_text(arguments["initial_prompt"], tokenizer),
        "hotwords": arguments["hotwords"] if arguments["prefix"] is None else None,
        "hotword_boost": 0.0,
        "hallucination_silence_threshold": silence_s if arguments["word_timestamps"] else None,
    }


def _prompt_text(prompt: str | Iterable[int] | None, tokenizer: Tokenizer) -> str | None:
    if prompt is None or isinstance(prompt, str):
        return prompt
    tokens = list(prompt)
    text = tokenizer.decode(tokens).strip()
    if tokenizer.encode(f" {text}") != tokens:
        raise UsageError("initial_prompt has tokens that are not those of a text with a space before it: give the text")
    return text


def _given(arguments: Mapping[str, Any], options: TranscribeOptions, tokenizer: Tokenizer) -> TranscriptionOptions:
    shown = {
        **arguments,
        "temperatures": list(options.temperatures),
        "suppress_tokens": tokenizer.suppressed(options.suppress_tokens),
        "multilingual": options.multilingual,
    }
    return TranscriptionOptions(**{field.name: shown[field.name] for field in fields(TranscriptionOptions)})
