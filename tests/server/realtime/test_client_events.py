"""Client events and both session dialects, parsed without a server."""

from __future__ import annotations

from typing import Any

import pytest

from choral.model.tokenizer import Tokenizer
from choral.server.model_names import ModelNames
from choral.server.realtime.client_events import SessionUpdate, TranscriptionSessionUpdate, parse_event
from choral.server.realtime.session_config import (
    AudioFormat,
    ServedModel,
    SessionConfig,
    TranscriptionConfig,
    TurnDetection,
)

DEFAULT = SessionConfig(transcription=TranscriptionConfig(model="tiny.en"))


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> ServedModel:
    return ServedModel(ModelNames.of(["tiny.en"]), tokenizer)


def updated(
    config: SessionConfig, session: dict[str, Any], served: ServedModel, *, is_beta: bool = False
) -> SessionConfig:
    event_type = "transcription_session.update" if is_beta else "session.update"
    event, unknown = parse_event({"type": event_type, "session": session}, served)
    assert not unknown
    match event:
        case SessionUpdate(session=ga_session):
            return config.updated(ga_session)
        case TranscriptionSessionUpdate(session=beta_session):
            return config.updated(beta_session)
    raise AssertionError(event)


def test_both_dialects_give_the_same_config(served: ServedModel) -> None:
    vad = {"type": "server_vad", "threshold": 0.7, "prefix_padding_ms": 100, "silence_duration_ms": 900}
    transcription = {"model": "whisper-1", "language": "English", "prompt": "Names: Hale"}
    ga_input = {"format": {"type": "audio/pcmu"}, "transcription": transcription, "turn_detection": vad}
    include = ["item.input_audio_transcription.logprobs"]
    beta = {"input_audio_format": "g711_ulaw", "input_audio_transcription": transcription, "turn_detection": vad}
    beta["include"] = include
    config = updated(DEFAULT, {"type": "transcription", "audio": {"input": ga_input}, "include": include}, served)
    assert config == SessionConfig(
        format=AudioFormat(type="audio/pcmu"),
        transcription=TranscriptionConfig(model="whisper-1", language="en", prompt="Names: Hale"),
        turn_detection=TurnDetection.model_validate(vad),
        include=("item.input_audio_transcription.logprobs",),
    )
    assert updated(DEFAULT, beta, served, is_beta=True) == config
    semantic = TurnDetection(type="semantic_vad", eagerness="low", threshold=0.4)
    require_round_trip(config, served)
    require_round_trip(config.model_copy(update={"turn_detection": semantic}), served)


def require_round_trip(config: SessionConfig, served: ServedModel) -> None:
    for is_beta in (False, True):
        session = config.to_json("sess_1", is_beta=is_beta)
        del session["id"], session["object"]
        assert updated(DEFAULT, session, served, is_beta=is_beta) == config  # a client can send back what it got


@pytest.mark.parametrize("is_beta", [False, True])
def test_an_update_changes_only_the_fields_it_names(served: ServedModel, is_beta: bool) -> None:
    config = SessionConfig(
        format=AudioFormat(type="audio/pcm", rate=16_000),
        transcription=TranscriptionConfig(model="whisper-1", language="en"),
        turn_detection=None,
    )
    empty = {} if is_beta else {"type": "transcription"}
    assert updated(config, empty, served, is_beta=is_beta) == config
    vad = {"turn_detection": {"type": "server_vad", "threshold": 0.9}}
    session = vad if is_beta else {"type": "transcription", "audio": {"input": vad}}
    changed = config.model_copy(update={"turn_detection": TurnDetection(type="server_vad", threshold=0.9)})
    assert updated(config, session, served, is_beta=is_beta) == changed


def test_a_transcription_without_a_model_uses_the_default_one(served: ServedModel) -> None:
    for transcription in ({}, {"model": None, "language": None, "prompt": None}):
        session = {"input_audio_transcription": transcription}
        assert updated(DEFAULT, session, served, is_beta=True).transcription == TranscriptionConfig(model="tiny.en")


@pytest.mark.parametrize("is_beta", [False, True])
def test_models_that_have_no_turn_detection_at_openai(served: ServedModel, is_beta: bool) -> None:
    """Their clients commit; a client that asks for turn detection gets it."""

    def named(model: str, **more: Any) -> dict[str, Any]:
        if is_beta:
            return {"input_audio_transcription": {"model": model}, **more}
        return {"type": "transcription", "audio": {"input": {"transcription": {"model": model}, **more}}}

    vad = {"type": "server_vad"}
    for model in ("gpt-realtime-whisper", "gpt-live-transcribe"):
        assert SessionConfig.of_model(model).turn_detection is None
        assert updated(DEFAULT, named(model), served, is_beta=is_beta).turn_detection is None
        given = updated(DEFAULT, named(model, turn_detection=vad), served, is_beta=is_beta)
        assert given.turn_detection == TurnDetection(type="server_vad")
        assert updated(given, named(model), served, is_beta=is_beta).turn_detection == given.turn_detection
    assert updated(DEFAULT, named("gpt-transcribe"), served, is_beta=is_beta).turn_detection is not None
