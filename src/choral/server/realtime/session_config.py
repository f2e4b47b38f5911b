"""How a session hears: the format of its audio, the model with language and prompt, and who decides where turns end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from choral.server.realtime.audio_formats import PCM_24K, AudioFormat
from choral.types import TranscribeOptions

MS = 1000


@dataclass(frozen=True)
class TranscriptionConfig:
    """Of a session's transcription."""

    model: str  # as the client calls it
    language: str | None = None  # None: heard in each turn
    prompt: str = ""

    @cached_property
    def options(self) -> TranscribeOptions:
        return TranscribeOptions(language=self.language, initial_prompt=self.prompt or None)


@dataclass(frozen=True)
class ServerVad:
    """Turns end where it is quiet."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300  # of sound before the speech that belong to the turn
    silence_duration_ms: int = 500

    @property
    def padding_s(self) -> float:
        return self.prefix_padding_ms / MS

    @property
    def min_silence_s(self) -> float:
        return self.silence_duration_ms / MS


@dataclass(frozen=True)
class SessionConfig:
    hints: TranscriptionConfig
    format: AudioFormat = PCM_24K
    turns: ServerVad | None = ServerVad()  # None: the client ends them
