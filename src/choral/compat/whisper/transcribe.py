"""`transcribe`: openai-whisper's arguments and result, on Choral's sequential mode."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from choral.compat.arguments import read_clips, read_temperatures
from choral.compat.whisper.audio import read_samples
from choral.errors import UsageError
from choral.formats import segment_fields
from choral.options import TEMPERATURES, TranscribeOptions
from choral.subtitles import vtt_time
from choral.transcript import Segment

if TYPE_CHECKING:
    from choral.compat.whisper.model import Whisper

SAME_NAMES = ("language", "task", "length_penalty", "prefix", "suppress_blank", "max_initial_timestamp")
OTHER_NAMES = ("sample_len", "best_of", "beam_size", "patience", "suppress_tokens", "without_timestamps", "fp16")
PREPENDED, APPENDED = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"


def transcribe(
    model: Whisper,
    audio: Any,
    *,
    verbose: bool | None = None,
    temperature: float | tuple[float, ...] = TEMPERATURES,
    compression_ratio_threshold: float | None = 2.4,
    logprob_threshold: float | None = -1.0,
    no_speech_threshold: float | None = 0.6,
    condition_on_previous_text: bool = True,
    initial_prompt: str | None = None,
    carry_initial_prompt: bool = False,
    word_timestamps: bool = False,
    prepend_punctuations: str = PREPENDED,
    append_punctuations: str = APPENDED,
    clip_timestamps: str | list[float] = "0",
    hallucination_silence_threshold: float | None = None,
    **decode_options: Any,
) -> dict[str, Any]:
    """The text, the segments and the language. The audio is a path, samples as an array, or as a tensor.

    `verbose=True` prints each segment; other values print nothing.
    """
    options = TranscribeOptions.of(
        temperature=read_temperatures(temperature),
        compression_ratio_threshold=compression_ratio_threshold,
        logprob_threshold=logprob_threshold,
        no_speech_threshold=no_speech_threshold,
        condition_on_previous_text=condition_on_previous_text,
        initial_prompt=initial_prompt,
        carry_initial_prompt=carry_initial_prompt,
        word_timestamps=word_timestamps,
        prepend_punctuations=prepend_punctuations,
        append_punctuations=append_punctuations,
        clip_timestamps=read_clips(clip_timestamps),
        hallucination_silence_threshold=hallucination_silence_threshold if word_timestamps else None,
        **_decoding(model, decode_options),
    )
    source = audio if isinstance(audio, str | os.PathLike) else read_samples(audio)
    transcript = model.model.transcribe(source, options, on_segment=_print if verbose else None)
    for warning in transcript.warnings:
        warnings.warn(warning, stacklevel=2)
    segments = [segment_fields(segment) for segment in transcript.segments]
    return {"text": transcript.text, "segments": segments, "language": transcript.language}


def _decoding(model: Whisper, given: dict[str, Any]) -> dict[str, Any]:
    """`DecodingOptions` as Choral's. Without `best_of`, openai-whisper draws one sample."""
    if unknown := sorted(set(given) - {*SAME_NAMES, *OTHER_NAMES}):
        raise UsageError(f"transcribe has no option {unknown[0]!r}")
    if given.get("fp16") is False and model.model.compute_type == "float16":
        warnings.warn("fp16=False has no effect: the model was loaded in float16", stacklevel=3)
    return {
        **{name: given[name] for name in SAME_NAMES if name in given},
        "beam_size": given.get("beam_size") or 1,
        "best_of": given.get("best_of") or 1,
        "patience": given.get("patience") or 1.0,
        "max_tokens": given.get("sample_len"),
        "timestamps": not given.get("without_timestamps", False),
        "suppress_tokens": _tokens(given.get("suppress_tokens", "-1")),
    }


def _tokens(given: str | Iterable[int] | None) -> tuple[int, ...]:
    if isinstance(given, str):
        given = map(int, filter(None, given.split(",")))
    return tuple(given or ())


def _print(segment: Segment) -> None:
    print(f"[{vtt_time(segment.start)} --> {vtt_time(segment.end)}] {segment.text}")
