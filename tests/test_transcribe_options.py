"""Validation of `TranscribeOptions`."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from choral.errors import UsageError
from choral.options import TranscribeOptions


def test_invalid_option_values() -> None:
    for wrong in (
        {"task": "sing"},
        {"mode": "fast"},
        {"temperature": -1.0},
        {"temperature": ()},
        {"beam_size": 0},
        {"best_of": True},
        {"patience": float("nan")},
        {"length_penalty": 2.0},
        {"clip_timestamps": (5.0, 1.0)},
        {"hallucination_silence_threshold": 1.0},
        {"vad_threshold": 7},
        {"max_tokens": 0},
    ):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            TranscribeOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("language", 5),
        ("language", ["en"]),
        ("temperature", None),
        ("temperature", "0"),
        ("temperature", True),
        ("clip_timestamps", "0,1"),
        ("clip_timestamps", ["0", "1"]),
        ("clip_timestamps", 1.5),
        ("suppress_tokens", "-1"),
        ("suppress_tokens", [1.5]),
        ("suppress_tokens", None),
        ("no_speech_threshold", float("nan")),
        ("logprob_threshold", "low"),
        ("prompt_reset_temperature", "x"),
        ("initial_prompt", 7),
        ("prepend_punctuations", None),
        ("vad", "no"),
        ("word_timestamps", "no"),
        ("seed", None),
        ("beam_size", 2.0),
    ],
)
def test_invalid_option_types(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*; it must be "):
        TranscribeOptions.of(**{name: value})


def test_options_accept_numpy_and_lists() -> None:
    options = TranscribeOptions.of(
        beam_size=np.int64(2),
        vad_threshold=np.float32(0.25),
        temperature=np.array([0.0, 0.5]),
        clip_timestamps=[0, 1],
        suppress_tokens=[-1, 5],
    )
    assert (options.beam_size, options.vad_threshold, options.temperatures) == (2, 0.25, (0.0, 0.5))
    assert (options.clip_timestamps, options.suppress_tokens) == ((0.0, 1.0), (-1, 5))


def test_auto_means_that_the_language_is_detected() -> None:
    assert TranscribeOptions(language="auto") == TranscribeOptions(language=" Auto") == TranscribeOptions()


def test_every_text_and_list_is_bounded() -> None:
    for field in dataclasses.fields(TranscribeOptions):
        if field.name in ("hotwords", "replacements", "voices"):
            continue  # test_term_lists.py, test_voices.py
        is_list = "tuple" in str(field.type)
        if is_list or str(field.type).startswith("str"):
            max_length = field.metadata["max_length"]
            value = "a" if "str" in str(field.type) else 1
            too_long = [value] * (max_length + 1) if is_list else "a" * (max_length + 1)
            if field.name == "speaker_names":
                too_long = [*map(str, range(max_length + 1))]
            unit = "values" if is_list else "characters"
            with pytest.raises(UsageError, match=f"{field.name} has {max_length + 1:,} {unit}; it must have at most"):
                TranscribeOptions.of(**{field.name: too_long})
            needed = {"diarize": True} if field.name in ("speakers", "speaker_names") else {}
            TranscribeOptions.of(**needed, **{field.name: too_long[:-1]})
    with pytest.raises(UsageError, match="languages has a name of 65 characters"):
        TranscribeOptions(languages=("a" * 65,))


EXTREME_VALUES: list[tuple[str, object]] = [
    ("seed", 10**400),
    ("seed", 10**5000),
    ("seed", 2**63),
    ("temperature", 10**400),
    ("clip_timestamps", (0, 10**400)),
    ("clip_timestamps", (0.0, 1e308)),
    ("clip_timestamps", (-1.0, 5.0)),
    ("suppress_tokens", (10**5000,)),
    ("patience", 10**5000),
    ("logprob_threshold", -(10**5000)),
    ("beam_size", [10**5000] * 50),
    ("beam_size", "9" * 10**6),
    ("initial_prompt", "a\ud800b"),
    ("hotwords", "\udfff"),
    ("language", "\ud800"),
    ("append_punctuations", "\udcff."),
]


@pytest.mark.parametrize(("name", "value"), EXTREME_VALUES, ids=range(len(EXTREME_VALUES)))
def test_extreme_values_are_usage_errors(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*; it must be ") as caught:
        TranscribeOptions.of(**{name: value})
    assert len(str(caught.value)) < 700
    str(caught.value).encode()
