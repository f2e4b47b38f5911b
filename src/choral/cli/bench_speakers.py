"""`choral bench speakers`: the diarization error rate on recordings with reference turns."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser
from choral.cli.bench import add_folder, add_quiet, find_audio, progress, require_counts
from choral.cli.console import format_table, write_stdout
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.bench.diarization_error import DiarizationError
    from choral.bench.speaker_corpus import ReferenceTurns
    from choral.diarization import Diarization, SpeakerTurn

USAGE = "choral bench speakers FOLDER [options]"
DESCRIPTION = """\
Diarization error rate on recordings with reference turns: missed speech, false alarms and confused speakers,
in percent of the reference's speech, overlapped speech included.

FOLDER has an .rttm beside each audio file, or .rttm files that name them; .uem files limit what is scored.
The second rate leaves out 0.25 s on both sides of every start and end of a turn. Speakers are counted twice:
all, and those who speak for 2 s or more. --pictures draws the turns of the reference above those found.
"""
COLLAR_S = 0.25
MIN_SPOKEN_S = 2.0  # in all; speakers with less can hardly be found
HEADER = (
    "file",
    "speakers",
    "found",
    f"≥ {MIN_SPOKEN_S:g} s",
    "found",
    "DER %",
    "missed",
    "false",
    "confused",
    "DER % (0.25)",
    "× real time",
)


@dataclass(frozen=True)
class SpeakerRow:
    name: str
    n_speakers: int  # in the reference
    n_found: int
    n_long: int  # who speak for MIN_SPOKEN_S or more, in the reference
    n_long_found: int
    audio_s: float
    cpu_s: float
    exact: DiarizationError
    with_collar: DiarizationError

    def fields(self) -> dict[str, Any]:
        return {
            "file": self.name,
            "speakers": self.n_speakers,
            "found": self.n_found,
            "long_speakers": self.n_long,
            "long_found": self.n_long_found,
            "audio_s": self.audio_s,
            "cpu_s": self.cpu_s,
            "der_percent": self.exact.rate_percent,
            "miss_percent": self.exact.percent(self.exact.miss_s),
            "false_alarm_percent": self.exact.percent(self.exact.false_alarm_s),
            "confusion_percent": self.exact.percent(self.exact.confusion_s),
            "collar_s": COLLAR_S,
            "der_percent_with_collar": self.with_collar.rate_percent,
        }


def add_arguments(parser: Parser) -> None:
    add_folder(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="use this many recordings of the folder (default: all)")
    parser.add_argument("--known-count", action="store_true", help="give the number of speakers as a hint")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw the turns of each recording (.svg)")
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from choral.bench.report import json_line
    from choral.bench.speaker_corpus import read_speaker_corpus

    require_counts(arguments, limit=1)
    if arguments.folder is None:
        raise UsageError("give a FOLDER of audio with reference turns (.rttm)")
    corpus = read_speaker_corpus(arguments.folder, find_audio(arguments.folder, arguments.quiet))
    rows = []
    for reference in corpus[: arguments.limit]:
        row, found = measure(reference, arguments.known_count)
        rows.append(row)
        if arguments.pictures is not None:
            draw(arguments.pictures, reference, found, f"{row.name}: DER {row.exact.rate_percent:.1f} %")
        figures = f"{row.n_found} of {row.n_speakers} speakers, DER {row.exact.rate_percent:.1f} %"
        progress(arguments)(f"{row.name}: {figures}")
    total = total_row(rows)
    n_right = sum(row.n_found == row.n_speakers for row in rows)
    write_stdout(format_table([HEADER, *map(table_line, (*rows, total))], numbers=range(1, len(HEADER))))
    n_long_right = sum(row.n_long_found == row.n_long for row in rows)
    counted = (
        f"number of speakers right in {n_right} of {len(rows)}, of those with {MIN_SPOKEN_S:g} s in {n_long_right}"
    )
    write_stdout(f"\n{counted}\n")
    fields = {"known_count": arguments.known_count, "n_right": n_right, "n_long_right": n_long_right}
    fields["total"] = total.fields()
    write_stdout(json_line("speakers", {**fields, "rows": [row.fields() for row in rows]}) + "\n")
    return 0


def measure(reference: ReferenceTurns, is_count_known: bool) -> tuple[SpeakerRow, Diarization]:
    from choral.bench.diarization_error import diarization_error
    from choral.speakers.diarize import diarize
    from choral.speakers.networks import load_networks

    load_networks()  # not part of the time
    started_s = time.process_time()
    found = diarize(reference.path, max(1, reference.n_speakers) if is_count_known else None)
    cpu_s = time.process_time() - started_s
    scored = reference.scored or ((0.0, found.duration),)
    row = SpeakerRow(
        name=reference.path.name,
        n_speakers=reference.n_speakers,
        n_found=len(found.speakers),
        n_long=n_long_speakers(reference.turns),
        n_long_found=n_long_speakers(found.turns),
        audio_s=found.duration,
        cpu_s=cpu_s,
        exact=diarization_error(reference.turns, found.turns, scored),
        with_collar=diarization_error(reference.turns, found.turns, scored, COLLAR_S),
    )
    return row, found


def n_long_speakers(turns: Sequence[SpeakerTurn]) -> int:
    seconds: dict[str, float] = defaultdict(float)
    for turn in turns:
        seconds[turn.speaker] += turn.duration
    return sum(spoken_s >= MIN_SPOKEN_S for spoken_s in seconds.values())


def draw(folder: Path, reference: ReferenceTurns, found: Diarization, title: str) -> None:
    from choral.bench.turns_svg import turns_svg
    from choral.storage import storage_errors

    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{reference.path.stem}.svg"
        path.write_text(turns_svg(reference.turns, found.turns, found.duration, title), encoding="utf-8")


def total_row(rows: Sequence[SpeakerRow]) -> SpeakerRow:
    """Errors and speech of all recordings together, so that long ones count more."""
    from choral.bench.diarization_error import DiarizationError

    return SpeakerRow(
        name="all",
        n_speakers=sum(row.n_speakers for row in rows),
        n_found=sum(row.n_found for row in rows),
        n_long=sum(row.n_long for row in rows),
        n_long_found=sum(row.n_long_found for row in rows),
        audio_s=sum(row.audio_s for row in rows),
        cpu_s=sum(row.cpu_s for row in rows),
        exact=sum((row.exact for row in rows), DiarizationError()),
        with_collar=sum((row.with_collar for row in rows), DiarizationError()),
    )


def table_line(row: SpeakerRow) -> tuple[str, ...]:
    exact = row.exact
    parts = (exact.error_s, exact.miss_s, exact.false_alarm_s, exact.confusion_s)
    return (
        row.name,
        str(row.n_speakers),
        str(row.n_found),
        str(row.n_long),
        str(row.n_long_found),
        *(f"{exact.percent(part):.1f}" for part in parts),
        f"{row.with_collar.rate_percent:.1f}",
        f"{row.audio_s / max(row.cpu_s, 1e-9):.1f}",
    )
