"""Voice detection: `VadOptions` as Choral's options, and `get_speech_timestamps`."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording
from choral.audio.speech_spans import HYSTERESIS, MIN_SPEECH_S
from choral.audio.vad import find_speech
from choral.compat.faster_whisper.results import VadOptions
from choral.errors import UsageError
from choral.options import TranscribeOptions

WINDOW_S = 30.0
MIN_SPEECH_MS = int(MIN_SPEECH_S * 1000)

__all__ = ["VadOptions", "get_speech_timestamps"]


def default_vad(*, is_batched: bool) -> VadOptions:
    """faster-whisper's, or those that batched mode was tuned with."""
    if not is_batched:
        return VadOptions()
    own = TranscribeOptions()
    return VadOptions(
        threshold=own.vad_threshold,
        min_speech_duration_ms=MIN_SPEECH_MS,
        max_speech_duration_s=WINDOW_S,
        min_silence_duration_ms=int(own.vad_min_silence * 1000),
        speech_pad_ms=int(own.vad_padding * 1000),
    )


def read_vad(given: VadOptions | dict[str, Any] | None, *, is_batched: bool) -> VadOptions:
    """Checked: what Choral's detector cannot do is a warning."""
    if not given:
        return default_vad(is_batched=is_batched)
    vad = VadOptions(**given) if isinstance(given, dict) else given
    if vad.neg_threshold is not None and not math.isclose(vad.neg_threshold, vad.threshold - HYSTERESIS):
        warnings.warn(
            f"neg_threshold has no effect: speech ends {HYSTERESIS} below the threshold of {vad.threshold}",
            stacklevel=5,
        )
    if vad.min_speech_duration_ms not in (0, MIN_SPEECH_MS):
        warnings.warn(
            f"min_speech_duration_ms has no effect: speech of less than {MIN_SPEECH_MS} ms is dropped", stacklevel=5
        )
    if vad.max_speech_duration_s < WINDOW_S:
        warnings.warn("max_speech_duration_s has no effect: speech is cut into windows of up to 30 s", stacklevel=5)
    return vad


def vad_settings(vad: VadOptions) -> dict[str, float]:
    """As fields of `TranscribeOptions`."""
    return {
        "vad_threshold": vad.threshold,
        "vad_min_silence": vad.min_silence_duration_ms / 1000,
        "vad_padding": vad.speech_pad_ms / 1000,
    }


def get_speech_timestamps(
    audio: npt.NDArray[np.float32],
    vad_options: VadOptions | None = None,
    sampling_rate: int = SAMPLE_RATE,
    **kwargs: Any,
) -> list[dict[str, int]]:
    """The spans of speech, in samples; options may also be given by name."""
    if sampling_rate != SAMPLE_RATE:
        raise UsageError(f"sampling_rate is {sampling_rate}; the voice detector needs {SAMPLE_RATE}")
    vad = read_vad(replace(vad_options or VadOptions(), **kwargs), is_batched=False)
    with Recording.open(audio) as recording:
        spans = find_speech(
            recording,
            threshold=vad.threshold,
            min_silence_s=vad.min_silence_duration_ms / 1000,
            pad_s=vad.speech_pad_ms / 1000,
        )
    return [{"start": span.start, "end": span.stop} for span in spans]
