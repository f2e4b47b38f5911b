"""`choral.compat.whisper` against the package openai-whisper on the same weights and samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import whisper as original

from choral.compat import whisper
from choral.errors import UsageError
from oracle import Pair, pair_from


@pytest.fixture(scope="module")
def pair(tiny_en_pt: Path) -> Iterator[Pair]:
    yield from pair_from(tiny_en_pt)


@pytest.fixture(scope="module")
def samples(jfk: Path) -> np.ndarray[Any, Any]:
    return whisper.load_audio(str(jfk))


@pytest.mark.parametrize(
    "options",
    [
        {"word_timestamps": True, "temperature": 0.0, "language": "en", "initial_prompt": "A speech."},
        pytest.param(
            {"beam_size": 3, "patience": 1.5, "clip_timestamps": "2,8", "without_timestamps": True},
            marks=pytest.mark.slow,  # tests/parity covers the decoding; this is about the arguments
        ),
        pytest.param(
            {"suppress_tokens": "-1,11", "sample_len": 12, "clip_timestamps": [0.0, 9.0]}, marks=pytest.mark.slow
        ),
    ],
)
def test_transcribe(
    pair: Pair,
    samples: np.ndarray[Any, Any],
    options: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = whisper.Whisper(pair.choral)
    found = whisper.transcribe(model, torch.from_numpy(samples), verbose=True, fp16=False, **options)
    printed = capsys.readouterr().out
    expected = pair.oracle.transcribe(samples, verbose=True, fp16=False, **options)
    assert_close(found, expected)
    assert printed == capsys.readouterr().out
    assert "country" in printed
    layout = {"max_line_width": 20, "highlight_words": True} if "word_timestamps" in options else {}
    for writer, name in ((whisper.utils.get_writer, "found"), (original.utils.get_writer, "expected")):
        (tmp_path / name).mkdir()
        writer("all", str(tmp_path / name))(expected, "folder/talk.mp3", layout)
    written = sorted((tmp_path / "expected").iterdir())
    assert [path.suffix for path in written] == [".json", ".srt", ".tsv", ".txt", ".vtt"]
    for path in written:
        assert (tmp_path / "found" / path.name).read_bytes() == path.read_bytes()


def assert_close(found: Any, expected: Any) -> None:
    """The same keys, texts and tokens; numbers to 1e-3, times of words to 20 ms."""
    assert type(found) is type(expected) or isinstance(expected, float)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_close(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=0.021)
    else:
        assert found == expected


def test_features(samples: np.ndarray[Any, Any]) -> None:
    for padding, n_mels in ((0, 80), (480_000, 128)):
        found = whisper.log_mel_spectrogram(samples, n_mels, padding=padding)
        expected = original.log_mel_spectrogram(samples, n_mels, padding=padding)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, atol=1e-4)
        for length in (300, 3000):
            trimmed = original.pad_or_trim(expected, length)
            assert torch.equal(whisper.pad_or_trim(expected, length), trimmed)
            assert np.array_equal(whisper.pad_or_trim(expected.numpy(), length), trimmed.numpy())
            assert torch.equal(whisper.pad_or_trim(expected.T, length, axis=0), trimmed.T)


def test_load_model(tiny_en_pt: Path, jfk: Path) -> None:
    model = whisper.load_model("tiny.en", device="cpu")
    assert (model.model.compute_type, model.device, model.is_multilingual) == ("float32", "cpu", False)
    assert model.dims.n_audio_ctx == 1500
    assert "ask what you can do for your country" in model.transcribe(str(jfk))["text"]
    assert set(whisper.available_models()) == set(original.available_models())
    for option in ("prompt", "no_such_option"):
        with pytest.raises(UsageError, match=option):
            model.transcribe(str(jfk), **{option: "x"})
    with pytest.warns(UserWarning, match="too short"):
        assert model.transcribe(np.zeros(100, np.float32))["segments"] == []
