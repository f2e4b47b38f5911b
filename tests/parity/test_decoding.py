"""Single windows: the same tokens and scores as openai-whisper, over many real clips and decoding options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import whisper

from choral.audio.recording import Recording
from choral.engine.window import DecodeParams, DetectLanguageParams, Window
from choral.longform.cuts import Cutter
from choral.longform.fallback import needs_fallback, score
from choral.options import TranscribeOptions
from oracle import Pair

N_PARTS = 12
CLIPS = {"en": 8, "es": 7, "fr": 8, "it": 7, "ru": 7}  # plus the five LibriVox sentences


@dataclass(frozen=True)
class DecodeCase:
    """Decoding options by Choral's names and by openai-whisper's."""

    params: dict[str, Any] = field(default_factory=dict)
    oracle_options: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    prefix: str | None = None


CASES = {
    "greedy": DecodeCase(),
    "beam": DecodeCase({"n_candidates": 5}, {"beam_size": 5}),
    "patient beam": DecodeCase(
        {"n_candidates": 3, "patience": 2.0, "length_penalty": 0.5},
        {"beam_size": 3, "patience": 2.0, "length_penalty": 0.5},
    ),
    "no timestamps": DecodeCase({"timestamps": False}, {"without_timestamps": True}),
    "no timestamps, beam": DecodeCase(
        {"timestamps": False, "n_candidates": 5}, {"without_timestamps": True, "beam_size": 5}
    ),
    "prompt": DecodeCase(prompt="Asterisk, voicemail, conference, extension."),
    "prefix": DecodeCase(prefix="Please", params={"timestamps": False}, oracle_options={"without_timestamps": True}),
    "translate": DecodeCase({"task": "translate"}, {"task": "translate"}),
    "few tokens": DecodeCase({"max_tokens": 5}, {"sample_len": 5}),
}
# Every clip is decoded greedily and with beams; the other cases alternate, so that each gets clips of every language.
ALCASES = ("greedy", "beam")
ALTERNATING = tuple(name for name in CASES if name not in ALCASES)


def compare(pair: Pair, recording: Recording, features: torch.Tensor, language: str, case: DecodeCase) -> None:
    tokenizer = pair.tokenizer
    expected = whisper.decode(
        pair.oracle,
        features,
        whisper.DecodingOptions(
            language=language, fp16=False, prompt=case.prompt, prefix=case.prefix, **case.oracle_options
        ),
    )
    params = DecodeParams(
        language=language,
        suppress_tokens=tokenizer.suppressed((-1,)),
        prompt=tuple(tokenizer.encode(" " + case.prompt)) if case.prompt else (),
        prefix=tuple(tokenizer.encode(" " + case.prefix)) if case.prefix else (),
        **case.params,
    )
    decoded = pair.engine.submit(Window(Cutter(recording, pair.oracle.dims.n_mels).first_window(), params)).result()
    assert list(decoded.tokens) == expected.tokens
    assert decoded.avg_logprob == pytest.approx(expected.avg_logprob, abs=1e-3)
    assert decoded.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=1e-3)
    attempt = score(decoded, 0.0, tokenizer)
    assert attempt.text == expected.text
    assert attempt.compression_ratio == expected.compression_ratio


def encoded(pair: Pair, recording: Recording) -> torch.Tensor:
    audio = whisper.pad_or_trim(torch.tensor(recording.samples(0, recording.n_samples)))
    with torch.no_grad():
        features: torch.Tensor = pair.oracle.encoder(whisper.log_mel_spectrogram(audio, pair.oracle.dims.n_mels)[None])
    return features[0]


@pytest.fixture(scope="module")
def clips(speech_clips: list[Path], prompts: Callable[[str, int], tuple[Path, ...]]) -> list[tuple[str, Path]]:
    found = [("en", path) for path in speech_clips]
    for language, n in CLIPS.items():
        found += [(language, path) for path in prompts(language, n)]
    return found


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, N_PARTS))])
def test_multilingual(part: int, tiny: Pair, clips: list[tuple[str, Path]]) -> None:
    assert len(clips) >= 40
    for i in range(part, len(clips), N_PARTS):
        language, path = clips[i]
        with Recording.open(path) as recording:
            features = encoded(tiny, recording)
            for name in (*ALCASES, ALTERNATING[i % len(ALTERNATING)]):
                compare(tiny, recording, features, language, CASES[name])
            compare_languages(tiny, recording, features)
            compare_fallback(tiny, recording, features, language)


def test_english_only(tiny_en: Pair, clips: list[tuple[str, Path]]) -> None:
    for language, path in clips[:4]:
        assert language == "en"
        with Recording.open(path) as recording:
            features = encoded(tiny_en, recording)
            for name in (*ALCASES, "no timestamps"):
                compare(tiny_en, recording, features, "en", CASES[name])


def compare_languages(pair: Pair, recording: Recording, features: torch.Tensor) -> None:
    _, expected = pair.oracle.detect_language(features)
    found = pair.engine.submit(
        Window(Cutter(recording, pair.oracle.dims.n_mels).first_window(), DetectLanguageParams())
    ).result()
    assert found.probabilities == pytest.approx(expected, abs=1e-3)
    assert found.best == max(expected, key=lambda code: expected[code])


def compare_fallback(pair: Pair, recording: Recording, features: torch.Tensor, language: str) -> None:
    """Whether temperature 0 is accepted, with thresholds just below and above this clip's scores."""
    audio = whisper.pad_or_trim(recording.samples(0, recording.n_samples))
    first = whisper.decode(pair.oracle, features, whisper.DecodingOptions(language=language, fp16=False))
    params = DecodeParams(language=language, suppress_tokens=pair.tokenizer.suppressed((-1,)))
    window = Window(Cutter(recording, pair.oracle.dims.n_mels).first_window(), params)
    attempt = score(pair.engine.submit(window).result(), 0.0, pair.tokenizer)
    decisions = []
    for thresholds in thresholds_around(first):
        decision = needs_fallback(attempt, TranscribeOptions(**thresholds))
        assert decision == falls_back(pair, audio, first, thresholds), thresholds
        decisions.append(decision)
    assert set(decisions) == {True, False}


def thresholds_around(result: whisper.DecodingResult) -> list[dict[str, Any]]:
    """Each threshold just below and just above the clip's score, the others off."""
    off = {"compression_ratio_threshold": None, "logprob_threshold": None, "no_speech_threshold": None}
    improbable = {**off, "logprob_threshold": result.avg_logprob + 0.01}
    return [
        {},
        improbable,
        {**off, "logprob_threshold": result.avg_logprob - 0.01},
        {**off, "compression_ratio_threshold": result.compression_ratio - 0.01},
        {**off, "compression_ratio_threshold": result.compression_ratio + 0.01},
        {**improbable, "no_speech_threshold": max(0.0, result.no_speech_prob - 0.002)},
        {**improbable, "no_speech_threshold": result.no_speech_prob + 0.002},
    ]


class FellBack(Exception):
    pass


def falls_back(pair: Pair, audio: Any, first: whisper.DecodingResult, thresholds: dict[str, Any]) -> bool:
    """Whether openai-whisper rejects its own result at temperature 0: it then decodes the window again."""
    calls: list[float] = []

    def decode(mel: torch.Tensor, options: whisper.DecodingOptions) -> whisper.DecodingResult:
        if calls:
            raise FellBack
        calls.append(options.temperature)
        return first

    pair.oracle.decode = decode
    try:
        pair.oracle.transcribe(
            audio, language=first.language, fp16=False, temperature=(0.0, 0.2), clip_timestamps=[0, 0.02], **thresholds
        )
    except FellBack:
        return True
    finally:
        del pair.oracle.decode
    return False
