"""`choral bench speakers`: the diarization error rate on recordings with reference turns."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser
from choral.cli.bench import add_folder, add_quiet, find_audio, progress, require_counts
from choral.cli.console import format_table, write_stdout
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.bench.diarization_error import DiarizationError
    from choral.bench.speaker_corpus import ReferenceTurns

USAGE = "choral bench speakers FOLDER [options]"
DESCRIPTION = """\
Diarization error rate on recordings with reference turns: missed speech, false alarms and confused speakers,
in percent of the reference's speech, overlapped speech included.

FOLDER has an .rttm beside each audio file, or .rttm files that name them; .uem files limit what is scored.
The second rate leaves out 0.25 s on both sides of every start and end of a turn.
"""
HEADER = ("file", "speakers", "found", "DER %", "missed", "false", "confused", "DER % (0.25)", "× real time")
COLLAR_S = 0.25


@dataclass(frozen=True)
class SpeakerRow:
    name: str
    n_speakers: int  # in the reference
    n_found: int
    audio_s: float
    cpu_s: float
    exact: DiarizationError
    with_collar: DiarizationError

    def fields(self) -> dict[str, Any]:
        return {
            "file": self.name,
            "speakers": self.n_speakers,
            "found": self.n_found,
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
        row = measure(reference, arguments.known_count)
        rows.append(row)
        figures = f"{row.n_found} of {row.n_speakers} speakers, DER {row.exact.rate_percent:.1f} %"
        progress(arguments)(f"{row.name}: {figures}")
    total = total_row(rows)
    n_right = sum(row.n_found == row.n_speakers for row in rows)
    write_stdout(format_table([HEADER, *map(table_line, (*rows, total))], numbers=range(1, len(HEADER))))
    write_stdout(f"\nnumber of speakers right in {n_right} of {len(rows)}\n")
    fields = {"known_count": arguments.known_count, "n_right": n_right, "total": total.fields()}
    write_stdout(json_line("speakers", {**fields, "rows": [row.fields() for row in rows]}) + "\n")
    return 0


def measure(reference: ReferenceTurns, is_count_known: bool) -> SpeakerRow:
    from choral.bench.diarization_error import diarization_error
    from choral.speakers.diarize import diarize
    from choral.speakers.networks import load_networks

    load_networks()  # not part of the time
    started_s = time.process_time()
    found = diarize(reference.path, max(1, reference.n_speakers) if is_count_known else None)
    cpu_s = time.process_time() - started_s
    scored = reference.scored or ((0.0, found.duration),)
    return SpeakerRow(
        name=reference.path.name,
        n_speakers=reference.n_speakers,
        n_found=len(found.speakers),
        audio_s=found.duration,
        cpu_s=cpu_s,
        exact=diarization_error(reference.turns, found.turns, scored),
        with_collar=diarization_error(reference.turns, found.turns, scored, COLLAR_S),
    )


def total_row(rows: Sequence[SpeakerRow]) -> SpeakerRow:
    """Errors and speech of all recordings together, so that long ones count more."""
    from choral.bench.diarization_error import DiarizationError

    return SpeakerRow(
        name="all",
        n_speakers=sum(row.n_speakers for row in rows),
        n_found=sum(row.n_found for row in rows),
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
        *(f"{exact.percent(part):.1f}" for part in parts),
        f"{row.with_collar.rate_percent:.1f}",
        f"{row.audio_s / max(row.cpu_s, 1e-9):.1f}",
    )
