"""Single windows: the same tokens and scores as openai-whisper, over many real clips and ways of decoding."""

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
from choral.types import TranscribeOptions
from oracle import Pair

CLIPS = {"en": 8, "es": 7, "fr": 8, "it": 7, "ru": 7}  # and the five sentences of LibriVox


@dataclass(frozen=True)
class Way:
    """One way of decoding, in Choral's words and in the reference's."""

    ours: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    prefix: str | None = None


WAYS = {
    "greedy": Way(),
    "beam": Way({"n_candidates": 5}, {"beam_size": 5}),
    "patient beam": Way(
        {"n_candidates": 3, "patience": 2.0, "length_penalty": 0.5},
        {"beam_size": 3, "patience": 2.0, "length_penalty": 0.5},
    ),
    "no timestamps": Way({"timestamps": False}, {"without_timestamps": True}),
    "no timestamps, beam": Way({"timestamps": False, "n_candidates": 5}, {"without_timestamps": True, "beam_size": 5}),
    "prompt": Way(prompt="Asterisk, voicemail, conference, extension."),
    "prefix": Way(prefix="Please", ours={"timestamps": False}, theirs={"without_timestamps": True}),
    "translate": Way({"task": "translate"}, {"task": "translate"}),
    "few tokens": Way({"max_tokens": 5}, {"sample_len": 5}),
}
# Every clip is decoded greedily and with beams; the other ways take turns, so that each sees clips of every language.
ALWAYS = ("greedy", "beam")
IN_TURN = tuple(name for name in WAYS if name not in ALWAYS)


def compare(pair: Pair, recording: Recording, features: torch.Tensor, language: str, way: Way) -> None:
    tokenizer = pair.tokenizer
    expected = whisper.decode(
        pair.oracle,
        features,
        whisper.DecodingOptions(language=language, fp16=False, prompt=way.prompt, prefix=way.prefix, **way.theirs),
    )
    work = DecodeParams(
        language=language,
        suppress_tokens=tokenizer.suppressed((-1,)),
        prompt=tuple(tokenizer.encode(" " + way.prompt)) if way.prompt else (),
        prefix=tuple(tokenizer.encode(" " + way.prefix)) if way.prefix else (),
        **way.ours,
    )
    decoded = pair.engine.submit(Window(Cutter(recording, pair.oracle.dims.n_mels).first_window(), work)).result()
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


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 6))])
def test_multilingual(part: int, tiny: Pair, clips: list[tuple[str, Path]]) -> None:
    assert len(clips) >= 40
    for i in range(part, len(clips), 6):
        language, path = clips[i]
        with Recording.open(path) as recording:
            features = encoded(tiny, recording)
            for name in (*ALWAYS, IN_TURN[i % len(IN_TURN)]):
                compare(tiny, recording, features, language, WAYS[name])
            compare_languages(tiny, recording, features)
            compare_fallback(tiny, recording, features, language)


def test_english_only(tiny_en: Pair, clips: list[tuple[str, Path]]) -> None:
    for language, path in clips[:6]:
        assert language == "en"
        with Recording.open(path) as recording:
            features = encoded(tiny_en, recording)
            for name in (*ALWAYS, "no timestamps"):
                compare(tiny_en, recording, features, "en", WAYS[name])


def compare_languages(pair: Pair, recording: Recording, features: torch.Tensor) -> None:
    _, expected = pair.oracle.detect_language(features)
    found = pair.engine.submit(
        Window(Cutter(recording, pair.oracle.dims.n_mels).first_window(), DetectLanguageParams())
    ).result()
    assert found.probabilities == pytest.approx(expected, abs=1e-3)
    assert found.best == max(expected, key=lambda code: expected[code])


def compare_fallback(pair: Pair, recording: Recording, features: torch.Tensor, language: str) -> None:
    """Whether temperature 0 stands, with thresholds close to this clip's own numbers on either side."""
    audio = whisper.pad_or_trim(recording.samples(0, recording.n_samples))
    first = whisper.decode(pair.oracle, features, whisper.DecodingOptions(language=language, fp16=False))
    work = DecodeParams(language=language, suppress_tokens=pair.tokenizer.suppressed((-1,)))
    window = Window(Cutter(recording, pair.oracle.dims.n_mels).first_window(), work)
    attempt = score(pair.engine.submit(window).result(), 0.0, pair.tokenizer)
    decisions = []
    for thresholds in thresholds_around(first):
        ours = needs_fallback(attempt, TranscribeOptions(**thresholds))
        assert ours == falls_back(pair, audio, first, thresholds), thresholds
        decisions.append(ours)
    assert set(decisions) == {True, False}


def thresholds_around(result: whisper.DecodingResult) -> list[dict[str, Any]]:
    """Each threshold just below and just above what the clip has; the others out of the way."""
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
    """Lets the reference score its own result at temperature 0: a second try of the window means that it fell."""
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
