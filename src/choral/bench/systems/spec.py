"""What is measured: a library, its settings, and the weights, as they are told to the process that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from choral.bench.clips import AudioFile
from choral.bench.load_generator import RoundResult


@dataclass(frozen=True, kw_only=True)
class PeerConfig:
    family: str  # what the table compares; the fastest setting of a family stands for it
    setting: str  # in words
    library: str  # the file in this folder that opens it
    model: str  # the path of the weights
    device: str
    compute_type: str
    threads: int  # in all
    engine: str = "auto"  # Choral's
    n_workers: int = 1  # that share the threads
    n_callers: int = 1
    batch_size: int = 0  # windows of one file, or whole requests, that go through the model together
    timestamps: bool = True
    is_long: bool = False  # one long recording instead of many short ones
    strategy: str = ""  # how a model is served, where the library leaves that open
    reads_files: bool = False  # reading and decoding the file is part of the work

    @property
    def name(self) -> str:
        return f"{self.family}, {self.setting}" if self.setting else self.family


class System(Protocol):
    def run(self, requests: Sequence[AudioFile]) -> RoundResult: ...
