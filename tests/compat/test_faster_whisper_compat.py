"""`choral.compat.faster_whisper` against the package faster-whisper on the same weights."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import time
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctranslate2
import faster_whisper as original
import faster_whisper.tokenizer
import faster_whisper.transcribe
import faster_whisper.vad
import numpy as np
import pytest

from choral.compat import faster_whisper as compat
from choral.compat.faster_whisper import tokenizer, transcribe, vad
from choral.errors import ModelNotFound, UsageError

SENTENCE = "ask what you can do for your country"


@dataclass(frozen=True)
class Models:
    compat: compat.WhisperModel
    original: Any


@pytest.fixture(scope="module")
def models(tiny_en_ct2: Path) -> Models:
    """tiny.en, in float32 in both."""
    folder = str(tiny_en_ct2)
    return Models(compat.WhisperModel(folder, device="cpu"), original.WhisperModel(folder, device="cpu"))


@pytest.fixture(scope="module")
def multilingual(tiny_ggml: Path) -> compat.WhisperModel:
    return compat.WhisperModel(str(tiny_ggml), device="cpu")


@pytest.fixture(scope="module")
def samples(jfk: Path) -> Any:
    return compat.decode_audio(str(jfk))


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    return [
        (name, list(item.default) if isinstance(item.default, tuple | list) else item.default)
        for name, item in inspect.signature(function).parameters.items()
    ]


@pytest.mark.parametrize(
    "path",
    [
        "WhisperModel.__init__",
        "WhisperModel.transcribe",
        "WhisperModel.detect_language",
        "BatchedInferencePipeline.__init__",
        "BatchedInferencePipeline.transcribe",
        "decode_audio",
        "download_model",
        "available_models",
        "format_timestamp",
        "tokenizer.Tokenizer.__init__",
    ],
)
def test_signatures(path: str) -> None:
    found, expected = compat, original
    for name in path.split("."):
        found, expected = getattr(found, name), getattr(expected, name)
    assert parameters(found) == parameters(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Segment", "Word", "TranscriptionInfo", "TranscriptionOptions", "VadOptions"])
def test_result_fields(name: str) -> None:
    found = getattr(transcribe, name)
    expected = getattr(original.transcribe, name, None) or getattr(original.vad, name)
    names = [[(field.name, field.default) for field in dataclasses.fields(kind)] for kind in (found, expected)]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    "options",
    [
        {"word_timestamps": True},
        {"beam_size": 1, "without_timestamps": True, "initial_prompt": "A speech.", "suppress_tokens": [-1, 11]},
        {"beam_size": 1, "clip_timestamps": "2,8", "hotwords": "Americans", "temperature": 0},
        {"vad_filter": True, "vad_parameters": {"speech_pad_ms": 400}, "language": "en"},
    ],
)
def test_segments_and_info(models: Models, jfk: Path, options: dict[str, Any]) -> None:
    found, info = models.compat.transcribe(str(jfk), **options)
    expected, expected_info = models.original.transcribe(str(jfk), **options)
    assert inspect.isgenerator(found)
    found, expected = list(found), list(expected)
    assert [(one.id, one.seek, one.text) for one in found] == [(one.id, one.seek, one.text) for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
        assert (one.words is None) == (other.words is None)
        numbers = {"start": 0.021, "end": 0.021, "avg_logprob": 1e-2, "no_speech_prob": 1e-2, "temperature": 0}
        for name, tolerance in numbers.items():
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=tolerance)
        for word, other_word in zip(one.words or (), other.words or (), strict=True):
            assert word.word == other_word.word
            assert (word.start, word.end) == pytest.approx((other_word.start, other_word.end), abs=0.041)
        assert one._asdict().keys() == dataclasses.asdict(other).keys()
    for name in ("language", "language_probability", "duration", "all_language_probs"):
        assert getattr(info, name) == getattr(expected_info, name)
    assert dataclasses.asdict(info.vad_options or vad.VadOptions()) == dataclasses.asdict(
        expected_info.vad_options or vad.VadOptions()
    )
    found_options, expected_options = info.transcription_options, expected_info.transcription_options
    for name in ("beam_size", "suppress_tokens", "temperatures", "hotwords", "without_timestamps"):
        assert getattr(found_options, name) == getattr(expected_options, name)


def test_prefix_is_part_of_the_text(models: Models, jfk: Path) -> None:
    [segment] = models.compat.transcribe(str(jfk), prefix="And so my fellow Americans", beam_size=1)[0]
    assert segment.text.startswith(" And so my fellow Americans")
    assert "do for your country" in segment.text
    assert models.compat.hf_tokenizer.decode(segment.tokens) == segment.text


def test_batched_pipeline(models: Models, samples: Any) -> None:
    pipeline = compat.BatchedInferencePipeline(models.compat)
    audio = np.concatenate([samples, np.zeros(16_000 * 12, np.float32), samples])
    segments, info = pipeline.transcribe(audio, batch_size=4, beam_size=1)
    first, second = segments
    assert SENTENCE in first.text.lower()
    assert SENTENCE in second.text.lower()
    assert first.end < 12 < 22 < second.start < second.end <= 34
    assert 20 < info.duration_after_vad < 24 < info.duration
    clips = [{"start": 0.0, "end": 11.0}, {"start": 23.0, "end": 34.0}]
    segments, info = pipeline.transcribe(audio, clip_timestamps=clips, beam_size=1)
    assert [(one.start, one.end) for one in segments] == [(0, 11), (23, 34)]
    assert info.vad_options is None


def test_language(multilingual: compat.WhisperModel, samples: Any) -> None:
    for model in (multilingual, compat.BatchedInferencePipeline(multilingual)):
        segments, info = model.transcribe(samples, word_timestamps=True, beam_size=1)
        assert info.all_language_probs is not None
        assert (info.language, info.language_probability) == info.all_language_probs[0]
        assert info.language == "en"
        assert info.language_probability > 0.9
        assert len(info.all_language_probs) == 99
        for segment in segments:
            assert segment.words is not None
            assert segment.text == "".join(word.word for word in segment.words)
            assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)
    code, probability, ranked = multilingual.detect_language(samples, vad_filter=True, language_detection_segments=2)
    assert (code, probability) == ranked[0]
    segments, info = multilingual.transcribe(samples, multilingual=True, beam_size=1)
    assert SENTENCE in "".join(segment.text for segment in segments)
    assert info.language == "en"
    with pytest.raises(UsageError, match="xx"):
        multilingual.transcribe(samples, language="xx")


def test_empty_audio(multilingual: compat.WhisperModel) -> None:
    empty = np.zeros(0, np.float32)
    assert list(multilingual.transcribe(empty)[0]) == []
    assert list(compat.BatchedInferencePipeline(multilingual).transcribe(empty)[0]) == []
    multilingual.detect_language(empty)


def test_a_generator_that_is_closed_cancels_the_rest(models: Models, samples: Any) -> None:
    n_cancelled = models.compat.model.stats.cancelled
    segments, _ = models.compat.transcribe(np.tile(samples, 6), beam_size=1, temperature=0)
    next(iter(segments))
    segments.close()  # type: ignore[attr-defined]
    end = time.monotonic() + 30
    while models.compat.model.stats.cancelled == n_cancelled:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size"),
        ({"length_penalty": 0.6}, "length_penalty"),
        ({"initial_prompt": [1, 2]}, "initial_prompt"),
    ],
)
def test_options_without_counterpart_raise(models: Models, samples: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        models.compat.transcribe(samples, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_length": 20}, "chunk_length"),
        ({"vad_filter": True, "vad_parameters": {"neg_threshold": 0.1}}, "neg_threshold"),
        ({"vad_filter": True, "vad_parameters": {"min_speech_duration_ms": 250}}, "min_speech_duration_ms"),
        ({"vad_filter": True, "vad_parameters": vad.VadOptions(max_speech_duration_s=9)}, "max_speech_duration_s"),
    ],
)
def test_options_that_only_move_cuts_warn(models: Models, samples: Any, options: dict[str, Any], message: str) -> None:
    with pytest.warns(UserWarning, match=message) as caught:
        models.compat.transcribe(samples, **options)
    assert caught[0].filename == __file__


def test_prompt_tokens(models: Models, samples: Any) -> None:
    tokens = models.compat.hf_tokenizer.encode(" A speech.")
    results = [models.compat.transcribe(samples, initial_prompt=one, beam_size=1)[0] for one in (tokens, "A speech.")]
    assert list(results[0]) == list(results[1])


def test_model_arguments(tiny_en_ct2: Path, tmp_path: Path) -> None:
    folder = str(tiny_en_ct2)
    assert (
        compat.WhisperModel(folder, device="cpu", compute_type="int8_float32", cpu_threads=1).model.compute_type
        == "int8"
    )
    for arguments, message in (
        ({"compute_type": "int4"}, "compute_type"),
        ({"files": {"model.bin": b""}}, "files"),
        ({"no_such_argument": 1}, "no_such_argument"),
        ({"use_auth_token": "secret"}, "HF_TOKEN"),
    ):
        with pytest.raises(UsageError, match=message):
            compat.WhisperModel(folder, device="cpu", **arguments)
    with pytest.raises(ModelNotFound):
        compat.WhisperModel("tiny.en", download_root=str(tmp_path), local_files_only=True)


def test_tokenizer(models: Models) -> None:
    found = tokenizer.Tokenizer(models.compat.hf_tokenizer, False)
    expected = original.tokenizer.Tokenizer(models.original.hf_tokenizer, False)
    for name in ("sot", "eot", "sot_lm", "sot_prev", "no_timestamps", "timestamp_begin", "transcribe", "sot_sequence"):
        assert getattr(found, name) == getattr(expected, name)
    for option in ([-1], [13], []):
        assert transcribe.get_suppressed_tokens(found, option) == original.transcribe.get_suppressed_tokens(
            expected, option
        )
    tokens = found.encode(" It's naïve, isn't it?")
    assert tokens == expected.encode(" It's naïve, isn't it?")
    assert found.decode([*tokens, found.timestamp_begin]) == expected.decode([*tokens, found.timestamp_begin])
    for name in ("split_to_word_tokens", "split_tokens_on_unicode", "split_tokens_on_spaces"):
        assert getattr(found, name)(tokens) == getattr(expected, name)(tokens)


def test_audio(samples: Any, jfk: Path, tmp_path: Path) -> None:
    np.testing.assert_allclose(samples, original.decode_audio(str(jfk)), atol=1e-3)
    file = tmp_path / "stereo.wav"
    with wave.open(str(file), "wb") as stereo:
        stereo.setparams((2, 2, 16_000, 0, "NONE", ""))
        stereo.writeframes((np.stack([samples, -samples], axis=1) * 32_767).astype(np.int16).tobytes())
    left, right = compat.decode_audio(str(file), split_stereo=True)
    np.testing.assert_allclose(left, samples, atol=1e-3)
    np.testing.assert_allclose(right, -samples, atol=1e-3)
    found = vad.get_speech_timestamps(samples, min_silence_duration_ms=100)
    expected = original.vad.get_speech_timestamps(samples, min_silence_duration_ms=100)
    assert abs(found[0]["start"] - expected[0]["start"]) < 1_600
    assert abs(found[-1]["end"] - expected[-1]["end"]) < 1_600


def test_models_and_times(tiny_en_pt: Path, tmp_path: Path) -> None:
    assert set(original.available_models()) <= set(compat.available_models())
    for arguments in ((3.5,), (3661.0,), (3.5, True, ",")):
        assert compat.format_timestamp(*arguments) == original.format_timestamp(*arguments)
    folder = compat.download_model("tiny.en", output_dir=str(tmp_path / "model"))
    assert folder == str(tmp_path / "model")
    assert ctranslate2.models.Whisper(folder).is_multilingual is False


def test_it_stands_for_the_package() -> None:
    """A program that imports faster_whisper and its modules gets the same classes everywhere."""
    code = """
import sys
from choral.compat import faster_whisper as compat
sys.modules["faster_whisper"] = compat
import faster_whisper
assert "de" in faster_whisper.tokenizer._LANGUAGE_CODES
from faster_whisper.transcribe import Segment, WhisperModel
from faster_whisper.vad import VadOptions
from faster_whisper.utils import download_model
from faster_whisper.audio import decode_audio
assert (Segment, WhisperModel, VadOptions) == (compat.Segment, compat.WhisperModel, compat.VadOptions)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
