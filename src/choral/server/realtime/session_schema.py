"""The two shapes in which clients write a session: today's, with everything under `audio.input`, and that of the beta.

Only what an update names changes; `format`, `transcription` and `turn_detection` are each replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from choral.errors import UsageError
from choral.model.languages import to_code
from choral.model.tokenizer import Tokenizer
from choral.server.realtime.audio_formats import G711_RATE, PCM_RATES, AudioFormat, Encoding
from choral.server.realtime.objects import JsonObject, shown
from choral.server.realtime.session_config import ServerVad, SessionConfig, TranscriptionConfig
from choral.server.speech_form import MAX_PROMPT_CHARACTERS

TYPES: dict[str, Encoding] = {"audio/pcm": "pcm", "audio/pcmu": "pcmu", "audio/pcma": "pcma"}
BETA_FORMATS = {
    "pcm16": AudioFormat("pcm", PCM_RATES[0]),
    "g711_ulaw": AudioFormat("pcmu", G711_RATE),
    "g711_alaw": AudioFormat("pcma", G711_RATE),
}
LONGEST_PADDING_MS, LONGEST_SILENCE_MS = 5_000, 60_000


@dataclass(frozen=True)
class SessionReader:
    """Checks what clients ask for against what is served."""

    models: Sequence[str]  # names of the one that is loaded
    tokenizer: Tokenizer

    def update(self, config: SessionConfig, session: JsonObject) -> SessionConfig:
        """The session after `session.update`."""
        session.choice("type", ("transcription",))
        session.only("include", [])
        audio = session.child("audio")
        given = audio.child("input")
        given.only("noise_reduction")
        if "format" in given:
            config = replace(config, format=_format(given.child("format")))
        config = self._common(config, given, "transcription")
        for part in (given, audio, session):
            part.end()
        return config

    def update_beta(self, config: SessionConfig, session: JsonObject) -> SessionConfig:
        """The same after `transcription_session.update`."""
        session.only("include", [])
        session.only("input_audio_noise_reduction")
        if "input_audio_format" in session:
            config = replace(config, format=BETA_FORMATS[session.choice("input_audio_format", tuple(BETA_FORMATS))])
        config = self._common(config, session, "input_audio_transcription")
        session.end()
        return config

    def _common(self, config: SessionConfig, given: JsonObject, transcription: str) -> SessionConfig:
        if transcription in given:
            config = replace(config, hints=self._hints(given.child(transcription)))
        if "turn_detection" in given:
            config = replace(config, turns=_turns(given))
        return config

    def _hints(self, given: JsonObject) -> TranscriptionConfig:
        model = given.text("model") or self.models[0]
        if model not in self.models:
            message = f"is {shown(model)}; there is {' and '.join(self.models)} here, which are names of the same"
            raise given.wrong("model", message, "model_not_found")
        language, prompt = given.text("language"), given.text("prompt", most=MAX_PROMPT_CHARACTERS)
        if language:
            try:
                language = to_code(language)
                self.tokenizer.language_token(language)
            except UsageError as error:
                raise given.wrong("language", f"cannot be taken: {error}") from error
        given.end()
        return TranscriptionConfig(model, language or None, prompt or "")


def _format(given: JsonObject) -> AudioFormat:
    encoding = TYPES[given.choice("type", tuple(TYPES))]
    rate = G711_RATE
    if encoding == "pcm":
        rate = given.take("rate") if "rate" in given else PCM_RATES[0]
        if rate not in PCM_RATES:
            raise given.wrong("rate", f"is {shown(rate)}; it must be {' or '.join(map(str, PCM_RATES))}")
    given.end()
    return AudioFormat(encoding, int(rate))


def _turns(given: JsonObject) -> ServerVad | None:
    value = given.take("turn_detection")
    if value is None:
        return None
    turns = JsonObject(value, given.path("turn_detection"))
    turns.choice("type", ("server_vad",))
    for name in ("create_response", "interrupt_response"):
        turns.only(name, False)
    turns.only("idle_timeout_ms")
    usual = ServerVad()
    found = ServerVad(
        turns.number("threshold", usual.threshold, 1),
        round(turns.number("prefix_padding_ms", usual.prefix_padding_ms, LONGEST_PADDING_MS)),
        round(turns.number("silence_duration_ms", usual.silence_duration_ms, LONGEST_SILENCE_MS)),
    )
    turns.end()
    return found


def session_fields(config: SessionConfig, session_id: str, *, is_beta: bool) -> dict[str, Any]:
    """The session as clients are told of it."""
    named: dict[str, Any] = {"id": session_id, "object": "realtime.transcription_session"}
    hints = {"model": config.hints.model, "language": config.hints.language, "prompt": config.hints.prompt}
    turns = None if config.turns is None else {"type": "server_vad", **vars(config.turns)}
    if is_beta:
        names = {form.encoding: name for name, form in BETA_FORMATS.items()}
        return {
            **named,
            "input_audio_format": names[config.format.encoding],
            "input_audio_transcription": hints,
            "input_audio_noise_reduction": None,
            "turn_detection": turns,
            "include": [],
        }
    types = {encoding: name for name, encoding in TYPES.items()}
    audio_format: dict[str, Any] = {"type": types[config.format.encoding]}
    if config.format.encoding == "pcm":
        audio_format["rate"] = config.format.rate
    heard = {"format": audio_format, "transcription": hints, "noise_reduction": None, "turn_detection": turns}
    return {**named, "type": "transcription", "audio": {"input": heard}, "include": []}
