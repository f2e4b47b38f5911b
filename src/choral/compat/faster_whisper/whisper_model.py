"""`WhisperModel` and `BatchedInferencePipeline`, with faster-whisper's signatures, on `choral.Model`.

`transcribe` opens the audio and detects the language; the segments are decoded while the generator is iterated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from choral.api import load
from choral.audio.constants import HOP_LENGTH, MEL_FRAMES_PER_SECOND, SAMPLE_RATE, WINDOW_MEL_FRAMES
from choral.audio.recording import Recording
from choral.compat.faster_whisper.language_detection import DetectedLanguage, find_language
from choral.compat.faster_whisper.model_settings import engine_settings
from choral.compat.faster_whisper.option_mapping import MappedOptions, map_options
from choral.compat.faster_whisper.results import Segment, TranscriptionInfo, VadOptions
from choral.compat.faster_whisper.utils import find_model
from choral.compat.faster_whisper.vad import read_vad, vad_settings
from choral.errors import UsageError
from choral.longform.cuts import Clip, n_mel_frames
from choral.longform.speech_windows import speech_in
from choral.model.languages import to_code
from choral.model.tokenizer import Tokenizer
from choral.options import Mode, TranscribeOptions

Audio = str | BinaryIO | npt.NDArray[np.float32]
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
PREPENDED, APPENDED = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
log = logging.getLogger("faster_whisper")


@dataclass(frozen=True)
class FeatureExtractor:
    """The shape of the features; Choral's engine computes them."""

    sampling_rate: int = SAMPLE_RATE
    hop_length: int = HOP_LENGTH
    nb_max_frames: int = WINDOW_MEL_FRAMES
    time_per_frame: float = 1 / MEL_FRAMES_PER_SECOND


class WhisperModel:
    def __init__(
        self,
        model_size_or_path: str,
        device: str = "auto",
        device_index: int | list[int] = 0,
        compute_type: str = "default",
        cpu_threads: int = 0,
        num_workers: int = 1,
        download_root: str | None = None,
        local_files_only: bool = False,
        files: dict[str, Any] | None = None,
        revision: str | None = None,
        use_auth_token: str | bool | None = None,
        **model_kwargs: Any,
    ) -> None:
        """`num_workers` needs no counterpart: calls from any number of threads are decoded in one batch."""
        if files:
            raise UsageError("files cannot be given here: give the path of a folder with them")
        settings = engine_settings(device, device_index, compute_type, cpu_threads, model_kwargs)
        path = find_model(model_size_or_path, download_root, local_files_only, revision, use_auth_token)
        self.model = load(path, settings=settings)
        self.feature_extractor = FeatureExtractor()
        self.logger = log

    @property
    def hf_tokenizer(self) -> Tokenizer:
        return self.model.transcriber.tokenizer

    @property
    def supported_languages(self) -> list[str]:
        return list(self.hf_tokenizer.languages)

    def transcribe(
        self,
        audio: Audio,
        language: str | None = None,
        task: str = "transcribe",
        log_progress: bool = False,
        beam_size: int = 5,
        best_of: int = 5,
        patience: float = 1,
        length_penalty: float = 1,
        repetition_penalty: float = 1,
        no_repeat_ngram_size: int = 0,
        temperature: float | Sequence[float] = TEMPERATURES,
        compression_ratio_threshold: float | None = 2.4,
        log_prob_threshold: float | None = -1.0,
        no_speech_threshold: float | None = 0.6,
        condition_on_previous_text: bool = True,
        prompt_reset_on_temperature: float = 0.5,
        initial_prompt: str | Iterable[int] | None = None,
        prefix: str | None = None,
        suppress_blank: bool = True,
        suppress_tokens: Sequence[int] | None = (-1,),
        without_timestamps: bool = False,
        max_initial_timestamp: float = 1.0,
        word_timestamps: bool = False,
        prepend_punctuations: str = PREPENDED,
        append_punctuations: str = APPENDED,
        multilingual: bool = False,
        vad_filter: bool = False,
        vad_parameters: dict[str, Any] | VadOptions | None = None,
        max_new_tokens: int | None = None,
        chunk_length: int | None = None,
        clip_timestamps: str | list[float] = "0",
        hallucination_silence_threshold: float | None = None,
        hotwords: str | None = None,
        language_detection_threshold: float | None = 0.5,
        language_detection_segments: int = 1,
    ) -> tuple[Iterable[Segment], TranscriptionInfo]:
        """Choral's sequential mode."""
        arguments = dict(locals())  # before any other variable
        return start(self, arguments, "sequential")

    def detect_language(
        self,
        audio: npt.NDArray[np.float32] | None = None,
        features: npt.NDArray[np.float32] | None = None,
        vad_filter: bool = False,
        vad_parameters: dict[str, Any] | VadOptions | None = None,
        language_detection_segments: int = 1,
        language_detection_threshold: float = 0.5,
    ) -> tuple[str, float, list[tuple[str, float]]]:
        """The most probable language, its probability, and those of all languages."""
        if audio is None or features is not None:
            raise UsageError("detect_language takes audio: Choral's engine computes the features")
        vad = vad_settings(read_vad(vad_parameters, is_batched=False)) if vad_filter else {}
        with Recording.open(audio) as recording:
            found = find_language(
                self.model.transcriber,
                recording,
                TranscribeOptions.of(vad=vad_filter, **vad),
                n_windows=language_detection_segments,
                threshold=language_detection_threshold,
            )
        return found.code, found.probability, found.probabilities


class BatchedInferencePipeline:
    def __init__(self, model: WhisperModel) -> None:
        self.model = model

    def transcribe(
        self,
        audio: Audio,
        language: str | None = None,
        task: str = "transcribe",
        log_progress: bool = False,
        beam_size: int = 5,
        best_of: int = 5,
        patience: float = 1,
        length_penalty: float = 1,
        repetition_penalty: float = 1,
        no_repeat_ngram_size: int = 0,
        temperature: float | Sequence[float] = TEMPERATURES,
        compression_ratio_threshold: float | None = 2.4,
        log_prob_threshold: float | None = -1.0,
        no_speech_threshold: float | None = 0.6,
        condition_on_previous_text: bool = True,
        prompt_reset_on_temperature: float = 0.5,
        initial_prompt: str | Iterable[int] | None = None,
        prefix: str | None = None,
        suppress_blank: bool = True,
        suppress_tokens: Sequence[int] | None = (-1,),
        without_timestamps: bool = True,
        max_initial_timestamp: float = 1.0,
        word_timestamps: bool = False,
        prepend_punctuations: str = PREPENDED,
        append_punctuations: str = APPENDED,
        multilingual: bool = False,
        vad_filter: bool = True,
        vad_parameters: dict[str, Any] | VadOptions | None = None,
        max_new_tokens: int | None = None,
        chunk_length: int | None = None,
        clip_timestamps: list[dict[str, float]] | None = None,
        hallucination_silence_threshold: float | None = None,
        batch_size: int = 8,
        hotwords: str | None = None,
        language_detection_threshold: float | None = 0.5,
        language_detection_segments: int = 1,
    ) -> tuple[Iterable[Segment], TranscriptionInfo]:
        """Choral's batched mode, with all its rules; `batch_size` is not needed: the engine's slots decide."""
        arguments = dict(locals())
        return start(self.model, arguments, "batched")


def start(model: WhisperModel, arguments: dict[str, Any], mode: Mode) -> tuple[Iterable[Segment], TranscriptionInfo]:
    """Open the audio, find the language, and return a generator of the segments."""
    tokenizer, language = model.hf_tokenizer, arguments["language"]
    if not tokenizer.is_multilingual and language not in (None, "en"):
        log.warning("The model is English-only: the language %s is not used.", language)
        arguments["language"] = "en"
    if arguments["multilingual"] and not tokenizer.is_multilingual:
        log.warning("The model is English-only: multilingual has no effect.")
    mapped = map_options(arguments, mode, tokenizer)
    if language is not None:
        tokenizer.language_token(to_code(arguments["language"]))  # raises for one that the model does not know
    recording = Recording.open(arguments["audio"])
    try:
        found = _language(model, recording, mapped, arguments)
        info = _info(recording, mapped, found)
    except BaseException:
        recording.close()
        raise
    options = mapped.options if mapped.options.multilingual else replace(mapped.options, language=found.code)
    return _segments(model, recording, options, log_progress=arguments["log_progress"]), info


def _language(
    model: WhisperModel, recording: Recording, mapped: MappedOptions, arguments: dict[str, Any]
) -> DetectedLanguage:
    if not model.hf_tokenizer.is_multilingual:
        return DetectedLanguage("en", 1.0, [])
    if arguments["language"] is not None:
        return DetectedLanguage(to_code(arguments["language"]), 1.0, [])
    return find_language(
        model.model.transcriber,
        recording,
        mapped.options,
        n_windows=arguments["language_detection_segments"],
        threshold=arguments["language_detection_threshold"],
    )


def _info(recording: Recording, mapped: MappedOptions, found: DetectedLanguage) -> TranscriptionInfo:
    speech_s = recording.duration
    if mapped.vad is not None:
        parts = speech_in(recording, [Clip(0, n_mel_frames(recording))], mapped.options)
        speech_s = sum(part.stop - part.start for part in parts) / MEL_FRAMES_PER_SECOND
    return TranscriptionInfo(
        language=found.code,
        language_probability=found.probability,
        duration=recording.duration,
        duration_after_vad=speech_s,
        all_language_probs=found.probabilities or None,
        transcription_options=mapped.given,
        vad_options=mapped.vad,
    )


def _segments(
    model: WhisperModel, recording: Recording, options: TranscribeOptions, *, log_progress: bool
) -> Iterator[Segment]:
    """The segments, each when it is final. A generator that is closed early cancels the rest."""
    with recording:
        transcription = model.model.begin(recording, options)
        prefix = model.hf_tokenizer.encode(f" {options.prefix.strip()}") if options.prefix else []
        for number, found in enumerate(transcription):
            segment = Segment.of(found)
            if number == 0 and prefix:  # part of the text in faster-whisper
                segment.text = model.hf_tokenizer.decode(prefix) + segment.text
                segment.tokens = prefix + segment.tokens
            if log_progress:
                log.info("%.1f of %.1f s", segment.end, recording.duration)
            yield segment
        for warning in transcription.transcript().warnings:
            log.warning(warning)
