"""RTTM and UEM, the text formats of NIST for turns of speakers and for the parts of recordings to be scored.

A turn is `SPEAKER uri channel start duration <NA> <NA> speaker <NA> <NA>`; a part is `uri channel start end`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import isfinite
from pathlib import Path

from choral.diarization import Diarization, SpeakerTurn
from choral.errors import UsageError
from choral.storage import storage_errors


def write_rttm(diarization: Diarization, uri: str) -> str:
    """Spaces separate the fields, so those in names become underscores."""
    return "".join(
        f"SPEAKER {_field(uri)} 1 {turn.start:.3f} {turn.duration:.3f} <NA> <NA> {_field(turn.speaker)} <NA> <NA>\n"
        for turn in diarization.turns
    )


def read_rttm(path: Path) -> dict[str, list[SpeakerTurn]]:
    """The turns of each recording, by its URI."""
    turns: dict[str, list[SpeakerTurn]] = defaultdict(list)
    for where, fields in _lines(path):
        if fields[0] != "SPEAKER":
            continue
        if len(fields) < 8:
            raise UsageError(f"{where} has {len(fields)} fields; a SPEAKER line has 10")
        start, duration = _times(where, fields[3:5])
        turns[fields[1]].append(SpeakerTurn(start, start + duration, fields[7]))
    return turns


def read_uem(path: Path) -> dict[str, list[tuple[float, float]]]:
    """The parts to be scored of each recording, by its URI."""
    parts: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for where, fields in _lines(path):
        if len(fields) != 4:
            raise UsageError(f"{where} has {len(fields)} fields; a line has 4: uri, channel, start and end")
        start, end = _times(where, fields[2:])
        parts[fields[0]].append((start, end))
    return parts


def _field(text: str) -> str:
    return "_".join(text.split()) or "_"


def _lines(path: Path) -> Iterable[tuple[str, list[str]]]:
    with storage_errors(path):
        text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith(";;"):
            yield f"{path.name} line {number}", line.split()


def _times(where: str, fields: list[str]) -> tuple[float, float]:
    try:
        first, second = (float(field) for field in fields)
    except ValueError as error:
        raise UsageError(f"{where} has times that are not numbers: {' '.join(fields)}") from error
    if not (isfinite(first) and isfinite(second) and first >= 0 and second >= 0):
        raise UsageError(f"{where} has times that are negative or not finite: {' '.join(fields)}")
    return first, second
