"""Names of the served model: those of other projects, configured ones, and servers that answer to every name."""

from __future__ import annotations

import pytest

from choral.errors import UsageError
from choral.server.api_errors import ApiError
from choral.server.model_names import MAX_MODEL_NAME_CHARACTERS, ModelNames


@pytest.mark.parametrize(
    ("served", "known", "unknown"),
    [
        (
            "large-v3",
            ["large", "openai/whisper-large-v3", "Systran/faster-whisper-large-v3"],
            "openai/whisper-large-v2",
        ),
        ("turbo", ["large-v3-turbo", "openai/whisper-large-v3-turbo"], "openai/whisper-large-v3"),
        ("openai/whisper-small", ["small", "Systran/faster-whisper-small"], "openai/whisper-small.en"),
        (
            "distil-large-v3",
            ["distil-whisper/distil-large-v3", "Systran/faster-distil-whisper-large-v3"],
            "Systran/faster-whisper-large-v3",
        ),
        ("our-own.pt", ["whisper-1", "gpt-4o-transcribe"], "openai/whisper-tiny"),
    ],
)
def test_names_of_the_same_weights(served: str, known: list[str], unknown: str) -> None:
    names = ModelNames.of([served])
    assert names.all[0] == served
    assert {served, "whisper-1", *known} <= set(names.all)
    assert len(set(names.all)) == len(names.all)
    for name in names.all:
        names.resolve(name)
    with pytest.raises(ApiError) as refused:
        names.resolve(unknown)
    assert (refused.value.http_status, refused.value.code) == (404, "model_not_found")


def test_aliases_and_every_name() -> None:
    assert "house" in ModelNames.of(["tiny"], ["house=tiny", "again = house"]).all
    assert "again" in ModelNames.of(["tiny"], ["house=tiny", "again = house"])
    for alias in ("house", "house=", "=tiny", "house=small", f"{'x' * 300}=tiny"):
        with pytest.raises(UsageError, match="alias"):
            ModelNames.of(["tiny"], [alias])
    every = ModelNames.of(["tiny"], accepts_any=True)
    every.resolve("any/thing")
    for name in ("", "x" * (MAX_MODEL_NAME_CHARACTERS + 1)):
        with pytest.raises(ApiError):
            every.resolve(name)


def test_names_of_several_models() -> None:
    names = ModelNames.of(["base", "tiny.en"], ["english=tiny.en", "house=whisper-1"])
    targets = {
        "base": "base",
        "whisper-1": "base",
        "openai/whisper-base": "base",
        "house": "base",
        "tiny.en": "tiny.en",
        "Systran/faster-whisper-tiny.en": "tiny.en",
        "english": "tiny.en",
    }
    for name, model_id in targets.items():
        assert names.resolve(name) == model_id
    assert names.resolve(None) == names.default == "base"
    assert names.all[:2] == ("base", "tiny.en")
    of_second = names.of_model("tiny.en")
    assert of_second.resolve("gpt-4o-transcribe") == of_second.resolve("english") == of_second.default == "tiny.en"
    assert "base" not in of_second
