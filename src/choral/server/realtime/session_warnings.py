"""Options of a session that are accepted without effect: a client is told of each, and the session goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from choral.server.realtime.session_config import AudioInput, BetaSession, TranscriptionSession, TurnDetection
from choral.server.realtime.turn_end import MODEL_NAME

MAX_WARNINGS = 20  # of one event
MAX_PATH_CHARACTERS = 100


@dataclass(frozen=True)
class SessionWarning:
    param: str
    message: str
    code: str = "unsupported_value"


def session_warnings(session: TranscriptionSession | BetaSession) -> Iterator[SessionWarning]:
    """What an update asks for and does not get."""
    is_beta = isinstance(session, BetaSession)
    config: AudioInput | BetaSession = session if isinstance(session, BetaSession) else session.audio.input
    parent, prefix = ("session", "input_audio_") if is_beta else ("session.audio.input", "")
    if config.noise_reduction is not None:
        yield SessionWarning(f"{parent}.{prefix}noise_reduction", "audio is transcribed as it is")
    if config.transcription.delay is not None:
        text = "text is sent as soon as it is certain"
        yield SessionWarning(f"{parent}.{prefix}transcription.delay", text)
    if (turns := config.turn_detection) is None:
        return
    path = f"{parent}.turn_detection"
    if turns.is_semantic and "silence_duration_ms" in turns.model_fields_set:
        yield SessionWarning(f"{path}.silence_duration_ms", "semantic_vad has `eagerness` instead")
    if turns.create_response or turns.interrupt_response:
        yield SessionWarning(path, "a transcription session has no responses to create or interrupt")
    if turns.idle_timeout_ms is not None:
        yield SessionWarning(f"{path}.idle_timeout_ms", "silence ends no turn that has not begun")


def turn_end_warning(turns: TurnDetection) -> SessionWarning:
    """The model of `semantic_vad` cannot be loaded."""
    text = f"the model {MODEL_NAME} cannot be loaded, so turns end after {turns.silence_duration_ms} ms of silence"
    return SessionWarning("session.audio.input.turn_detection.type", text)


def unknown_field_warnings(paths: Sequence[str]) -> Iterator[SessionWarning]:
    for path in paths[:MAX_WARNINGS]:
        yield SessionWarning(path[:MAX_PATH_CHARACTERS], "is not known here, and has no effect", "unknown_parameter")
