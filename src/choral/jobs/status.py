"""What a worker says of itself once a second: where it is, what it does, and how fast."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    name: str
    host: str
    model: str
    device: str
    started_at: float  # by the clock of its machine
    in_prep: int  # jobs that are fetched and decoded, or wait for it
    in_engine: int
    succeeded: int  # since its start
    failed: int
    audio_per_s: float  # seconds of audio a second, over the last minute: hours an hour
    busy_share: float  # of the engine, over the last minute
    is_stopping: bool

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> WorkerStatus:
        """A worker of a newer version may say more."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})
