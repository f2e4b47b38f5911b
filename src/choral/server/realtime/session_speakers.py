"""The speakers of a session's turns, told apart from the first time that they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from choral.errors import ChoralError
from choral.server.api_errors import to_api_error
from choral.server.realtime.turn import Turn

if TYPE_CHECKING:
    from choral.speakers.live_speakers import LiveSpeakers


class SessionSpeakers:
    def __init__(self) -> None:
        self._speakers: LiveSpeakers | None = None

    def load(self) -> None:
        """The networks are downloaded when they are first used in this process."""
        if self._speakers is None:
            self._speakers = _load_speakers()

    def field_of(self, turn: Turn) -> dict[str, Any]:
        """The `speaker` field of a turn that has ended; no field if it was not asked for."""
        if not turn.transcription.diarize or self._speakers is None:
            return {}
        return {"speaker": self._speakers.assign(turn.audio.copy()) if turn.text.text else None}


def _load_speakers() -> LiveSpeakers:
    from choral.speakers.live_speakers import LiveSpeakers
    from choral.speakers.networks import load_networks

    try:
        return LiveSpeakers(load_networks())
    except ChoralError as error:
        api_error = to_api_error(error)
        api_error.param = "session.audio.input.transcription.diarize"
        raise api_error from error
