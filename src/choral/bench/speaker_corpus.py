"""A folder of recordings with reference turns: RTTM files, each for the audio of its name or for those that it names.

UEM files limit what is scored; without one, all of a recording is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from choral.bench.diarization_error import Span
from choral.diarization import SpeakerTurn
from choral.errors import AudioNotFound
from choral.speakers.rttm import read_rttm, read_uem


@dataclass(frozen=True)
class ReferenceTurns:
    path: Path
    turns: tuple[SpeakerTurn, ...]
    scored: tuple[Span, ...] | None  # None: all of it

    @property
    def n_speakers(self) -> int:
        return len({turn.speaker for turn in self.turns})


def read_speaker_corpus(folder: Path, audio: Sequence[Path]) -> list[ReferenceTurns]:
    """The recordings that have reference turns, in the order given."""
    by_file = {path: read_rttm(path) for path in sorted(folder.rglob("*.rttm"))}
    by_uri = {uri: turns for of_file in by_file.values() for uri, turns in of_file.items()}
    parts = {uri: spans for path in sorted(folder.rglob("*.uem")) for uri, spans in read_uem(path).items()}
    corpus = []
    for path in audio:
        own = by_file.get(path.with_suffix(".rttm"))
        turns = [turn for of_uri in own.values() for turn in of_uri] if own is not None else by_uri.get(path.stem)
        if turns is not None:
            scored = parts.get(path.stem)
            corpus.append(ReferenceTurns(path, tuple(turns), None if scored is None else tuple(scored)))
    if not corpus:
        raise AudioNotFound(
            f"{folder} has no recordings with reference turns: it needs an .rttm beside each audio file, "
            "or one that names them"
        )
    return corpus
