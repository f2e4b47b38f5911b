"""`choral bench peers`: Choral beside its peers with the same clips, weights and threads, greedy, without retries.

Two loads: many short clips from as many callers at once, and one long file. Targets for Choral are checked at the end.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from choral.bench.clips import AudioClip
from choral.bench.peer_configs import PeerSetup, all_configs, missing_notes
from choral.bench.report import bars, verdict
from choral.bench.round_robin import PeerResult, RoundRobin
from choral.bench.wer import Score, normaliser, score

SHORT_TARGET, LONG_TARGET, MAX_WER_DIFFERENCE = 1.5, 1.2, 0.1


@dataclass(frozen=True)
class SpeedRow:
    system: str
    setting: str
    times_real_time: float  # seconds of audio per second
    wer_percent: float | None  # None: no transcripts to compare with
    peak_bytes: int
    rounds_s: tuple[float, ...]
    rounds_cpu_s: tuple[float, ...]  # of all threads


@dataclass(frozen=True)
class LoadReport:
    name: str
    audio_s: float
    n_requests: int
    rows: tuple[SpeedRow, ...]  # fastest first
    notes: tuple[str, ...]

    def best(self, name: str) -> SpeedRow | None:
        """The fastest of the systems whose names start with this."""
        return next((row for row in self.rows if row.system.startswith(name)), None)


def measure_load(
    setup: PeerSetup,
    clips: Sequence[AudioClip],
    trial_clips: Sequence[AudioClip],
    round_robin: RoundRobin,
    n_rounds: int,
    is_selected: Callable[[str], bool],
) -> LoadReport:
    """`trial_clips` are a shorter load of the same kind, to choose settings with."""
    configs = [config for config in all_configs(setup) if is_selected(config.family)]
    results = round_robin.run(round_robin.pick_fastest(configs, trial_clips), clips, n_rounds)
    rows = sorted((speed_row(result, clips) for result in results), key=lambda row: -row.times_real_time)
    name = "one long file" if setup.is_long else f"{len(clips)} short clips from {setup.n_callers} callers"
    notes = (*missing_notes(setup), *round_robin.notes)
    return LoadReport(name, total_s(clips), len(clips), tuple(rows), notes)


def speed_row(result: PeerResult, clips: Sequence[AudioClip]) -> SpeedRow:
    total = total_score(result, clips)
    return SpeedRow(
        system=result.config.family,
        setting=result.config.setting,
        times_real_time=total_s(clips) / result.wall_s,
        wer_percent=None if total is None else total.percent,
        peak_bytes=result.peak_bytes,
        rounds_s=tuple(one.wall_s for one in result.rounds),
        rounds_cpu_s=tuple(one.cpu_s for one in result.rounds),
    )


def total_score(result: PeerResult, clips: Sequence[AudioClip]) -> Score | None:
    """Over all rounds; None where a transcript is missing."""
    total = Score(0)
    for one in result.rounds:
        for clip, text in zip(clips, one.texts, strict=True):
            if clip.text is None:
                return None
            total += score(clip.text, text, normaliser(clip.language or "en"))
    return total


def total_s(clips: Iterable[AudioClip]) -> float:
    return sum(clip.duration_s for clip in clips)


def chart(report: LoadReport) -> str:
    rows = [(row.system, row.times_real_time, row_label(row)) for row in report.rows]
    notes = "".join(f"note: {note}\n" for note in report.notes)
    return f"{report.name}, {report.audio_s:.0f} s of audio\n\n{bars(rows)}{notes}"


def row_label(row: SpeedRow) -> str:
    wer = "  WER ?" if row.wer_percent is None else f"  WER {row.wer_percent:.2f} %"
    setting = f"  ({row.setting})" if row.setting else ""
    cpu = f"  {statistics.median(row.rounds_cpu_s):6.1f} CPU s"
    return f"{row.times_real_time:6.1f} × real time{wer}  {row.peak_bytes / 1e6:5.0f} MB{cpu}{setting}"


@dataclass(frozen=True)
class Target:
    """A target for Choral, and whether it holds; the field names are those of the JSON line."""

    name: str
    value: float | None  # None: not measured in this run
    goal: float
    holds: bool | None

    def __str__(self) -> str:
        value = "" if self.value is None else f" (here {self.value:.2f})"
        return verdict(f"{self.name}{value}", holds=self.holds)


def check_targets(short: LoadReport | None, long: LoadReport | None) -> tuple[Target, ...]:
    peer = "faster-whisper"
    name = f"short clips: at least {SHORT_TARGET} × faster-whisper's best"
    targets = [speed_target(name, short, peer, SHORT_TARGET)]
    name = f"long file: at least {LONG_TARGET} × its batched pipeline"
    targets.append(speed_target(name, long, f"{peer} batched", LONG_TARGET))
    name = f"long file, with defaults: at least {LONG_TARGET} × its sequential mode"
    targets.append(speed_target(name, long, f"{peer} int8", LONG_TARGET, "choral defaults"))
    for kind, report in (("short clips", short), ("long file", long)):
        name = f"{kind}: word error rate at most {MAX_WER_DIFFERENCE} above openai-whisper's"
        targets.append(wer_target(name, report))
    return tuple(targets)


def speed_target(name: str, report: LoadReport | None, peer: str, goal: float, system: str = "choral") -> Target:
    ours, theirs = (report.best(system), report.best(peer)) if report is not None else (None, None)
    if ours is None or theirs is None:
        return Target(name, None, goal, None)
    ratio = ours.times_real_time / theirs.times_real_time
    return Target(name, ratio, goal, ratio >= goal)


def wer_target(name: str, report: LoadReport | None) -> Target:
    """For Choral's fastest setting, the one whose speed is claimed."""
    ours, theirs = (report.best("choral"), report.best("openai-whisper")) if report is not None else (None, None)
    if ours is None or theirs is None or ours.wer_percent is None or theirs.wer_percent is None:
        return Target(name, None, MAX_WER_DIFFERENCE, None)
    difference = ours.wer_percent - theirs.wer_percent
    return Target(name, difference, MAX_WER_DIFFERENCE, difference <= MAX_WER_DIFFERENCE)
