"""Choral beside its peers: the same clips and weights, greedy, no second tries, the same threads, in one run.

Two loads: many short clips from as many callers at once, and one long file. The bars that Choral sets itself are
checked at the end.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from choral.bench.clips import AudioClip
from choral.bench.peer_configs import PeerSetup, entrants, missing
from choral.bench.report import bars, verdict
from choral.bench.round_robin import PeerResult, RoundRobin
from choral.bench.wer import Score, normaliser, score

SHORT_GOAL, LONG_GOAL, WER_SLACK = 1.5, 1.2, 0.1
MOST_HEAT_REQUESTS = 16


@dataclass(frozen=True)
class SpeedRow:
    system: str
    setting: str
    times_real_time: float  # seconds of audio per second
    wer_percent: float | None  # None: no texts to compare with
    peak_bytes: int
    rounds_s: tuple[float, ...]
    rounds_cpu_s: tuple[float, ...]  # of all its threads

    def is_of(self, name: str) -> bool:
        return self.system.startswith(name)


@dataclass(frozen=True)
class LoadReport:
    name: str
    audio_s: float
    n_requests: int
    rows: tuple[SpeedRow, ...]  # the fastest first
    notes: tuple[str, ...]

    def best(self, name: str) -> SpeedRow | None:
        """The fastest of the systems whose names begin so."""
        return next((row for row in self.rows if row.is_of(name)), None)


def measure_load(
    setup: PeerSetup,
    sounds: Sequence[AudioClip],
    heat: Sequence[AudioClip],
    contest: RoundRobin,
    n_rounds: int,
    is_wanted: Callable[[str], bool],
) -> LoadReport:
    """`heat` is a shorter load of the same kind, to choose settings with."""
    specs = [spec for spec in entrants(setup) if is_wanted(spec.family)]
    standings = contest.compete(contest.qualify(specs, heat), sounds, n_rounds)
    rows = sorted((speed_row(standing, sounds) for standing in standings), key=lambda row: -row.times_real_time)
    name = "one long file" if setup.is_long else f"{len(sounds)} short clips from {setup.n_callers} callers"
    notes = (*missing(setup), *contest.notes)
    return LoadReport(name, total_s(sounds), len(sounds), tuple(rows), notes)


def speed_row(standing: PeerResult, sounds: Sequence[AudioClip]) -> SpeedRow:
    total = total_score(standing, sounds)
    return SpeedRow(
        system=standing.spec.family,
        setting=standing.spec.setting,
        times_real_time=total_s(sounds) / standing.wall_s,
        wer_percent=None if total is None else total.percent,
        peak_bytes=standing.peak_bytes,
        rounds_s=tuple(run.wall_s for run in standing.runs),
        rounds_cpu_s=tuple(run.cpu_s for run in standing.runs),
    )


def total_score(standing: PeerResult, sounds: Sequence[AudioClip]) -> Score | None:
    """Over all rounds; None where a text is not known."""
    total = Score(0, 0)
    for run in standing.runs:
        for sound, heard in zip(sounds, run.texts, strict=True):
            if sound.text is None:
                return None
            total += score(sound.text, heard, normaliser(sound.language or "en"))
    return total


def total_s(sounds: Iterable[AudioClip]) -> float:
    return sum(sound.duration_s for sound in sounds)


def chart(report: LoadReport) -> str:
    rows = [(row.system, row.times_real_time, shown(row)) for row in report.rows]
    notes = "".join(f"note: {note}\n" for note in report.notes)
    return f"{report.name}, {report.audio_s:.0f} s of audio\n\n{bars(rows)}{notes}"


def shown(row: SpeedRow) -> str:
    wer = "  WER ?" if row.wer_percent is None else f"  WER {row.wer_percent:.2f} %"
    setting = f"  ({row.setting})" if row.setting else ""
    cpu = f"  {statistics.median(row.rounds_cpu_s):6.1f} CPU s"
    return f"{row.times_real_time:6.1f} × real time{wer}  {row.peak_bytes / 1e6:5.0f} MB{cpu}{setting}"


@dataclass(frozen=True)
class Bar:
    name: str
    value: float | None  # None: not measured in this run
    goal: float
    holds: bool | None

    def __str__(self) -> str:
        value = "" if self.value is None else f" (here {self.value:.2f})"
        return verdict(f"{self.name}{value}", holds=self.holds)


def check_bars(short: LoadReport | None, long: LoadReport | None) -> tuple[Bar, ...]:
    peer = "faster-whisper"
    found = [speed_bar(f"short clips: at least {SHORT_GOAL} × faster-whisper's best", short, peer, SHORT_GOAL)]
    found.append(
        speed_bar(f"long file: at least {LONG_GOAL} × its batched pipeline", long, f"{peer} batched", LONG_GOAL)
    )
    for kind, report in (("short clips", short), ("long file", long)):
        found.append(wer_bar(f"{kind}: word error rate at most {WER_SLACK} above openai-whisper's", report))
    return tuple(found)


def speed_bar(name: str, report: LoadReport | None, peer: str, goal: float) -> Bar:
    ours, theirs = (report.best("choral"), report.best(peer)) if report is not None else (None, None)
    if ours is None or theirs is None:
        return Bar(name, None, goal, None)
    ratio = ours.times_real_time / theirs.times_real_time
    return Bar(name, ratio, goal, ratio >= goal)


def wer_bar(name: str, report: LoadReport | None) -> Bar:
    """Of Choral's fastest, the one that the speed is claimed for."""
    ours, theirs = (report.best("choral"), report.best("openai-whisper")) if report is not None else (None, None)
    if ours is None or theirs is None or ours.wer_percent is None or theirs.wer_percent is None:
        return Bar(name, None, WER_SLACK, None)
    difference = ours.wer_percent - theirs.wer_percent
    return Bar(name, difference, WER_SLACK, difference <= WER_SLACK)
