"""Models of other shapes with random weights: mel bins and vocabulary of large-v3, distilled decoders, odd sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import whisper

from choral.audio.recording import Recording
from choral.engine.window import DecodeParams, DetectLanguageParams, Window
from choral.longform.cuts import Cutter
from choral.model.dims import ModelDims
from oracle import Pair, pair_of
from random_model import random_checkpoint

SHAPES = {
    "large-v3's bins and vocabulary": ModelDims(128, 1500, 64, 2, 2, 51866, 448, 64, 2, 2),
    "distilled: two decoder layers": ModelDims(80, 1500, 128, 2, 4, 51865, 448, 128, 2, 2),
    "turbo's proportions": ModelDims(128, 1500, 64, 1, 8, 51866, 448, 64, 1, 1),
    "English only, three heads": ModelDims(80, 1500, 96, 3, 1, 51864, 448, 96, 3, 3),
}


@pytest.mark.parametrize("dims", SHAPES.values(), ids=SHAPES.keys())
def test_random_model_of_shape(dims: ModelDims, jfk: Path) -> None:
    for pair in pair_of(random_checkpoint(dims)):
        with Recording.open(jfk) as recording:
            audio = whisper.pad_or_trim(torch.tensor(recording.samples(0, recording.n_samples)))
            mel = whisper.log_mel_spectrogram(audio, dims.n_mels)
            window = Cutter(recording, dims.n_mels).first_window()
            for beams in (1, 4):
                compare(pair, mel, window, beams)
            if dims.is_multilingual:
                _, expected = pair.oracle.detect_language(mel)
                found = pair.engine.submit(Window(window, DetectLanguageParams())).result()
                assert found.probabilities == pytest.approx(expected, abs=1e-3)
                assert len(found.probabilities) == dims.n_languages
            assert (
                pair.choral.transcribe(recording, word_timestamps=True, temperature=0.0, max_tokens=12).duration == 11
            )


def compare(pair: Pair, mel: torch.Tensor, window: object, beams: int) -> None:
    options = whisper.DecodingOptions(language="en", fp16=False, sample_len=12, beam_size=beams if beams > 1 else None)
    expected = whisper.decode(pair.oracle, mel, options)
    params = DecodeParams(
        language="en", max_tokens=12, n_candidates=beams, suppress_tokens=pair.tokenizer.suppressed((-1,))
    )
    decoded = pair.engine.submit(Window(window, params)).result()  # type: ignore[arg-type]
    assert list(decoded.tokens) == expected.tokens
    assert decoded.avg_logprob == pytest.approx(expected.avg_logprob, abs=1e-3)
