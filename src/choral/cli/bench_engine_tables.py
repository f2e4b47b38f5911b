"""What `choral bench engine` and `choral bench fairness` print: tables, bars, what holds, and a line of JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from choral.bench import engine_load
from choral.bench.engine_load import Load, OwnTime
from choral.bench.fairness import Fairness, Waits
from choral.bench.material import Material
from choral.bench.report import bars, json_line, verdict
from choral.cli.console import aligned
from choral.engine.group import AnyEngine


@dataclass(frozen=True)
class Subject:
    """What was measured, and with what."""

    model: str
    engine: str
    device: str
    compute_type: str
    material: str
    slots: int
    cache_budget_bytes: int

    @classmethod
    def of(cls, arguments: argparse.Namespace, engine: AnyEngine, material: Material) -> Subject:
        random_weights = getattr(arguments, "random_weights", None)
        model = f"random {random_weights}" if random_weights else arguments.model or "the default model"
        capacity = engine.capacity
        machine = (engine.name, engine.device, engine.compute_type)
        return cls(model, *machine, material.name, capacity.n_slots, capacity.cache_bytes)

    @property
    def title(self) -> str:
        return f"{self.model}, {self.engine} on {self.device} in {self.compute_type}, {self.slots} slots"


def engine_report(subject: Subject, loads: Sequence[Load], own: Sequence[OwnTime]) -> str:
    flat, share = engine_load.is_flat(loads), engine_load.own_share(loads, own)
    fits = all(load.cache_bytes <= subject.cache_budget_bytes for load in loads)
    speeds = [(f"{load.windows} windows", load.windows_per_s, f"{load.windows_per_s:.2f}/s") for load in loads]
    verdicts = [
        verdict("throughput flat within 10% from 64 windows up", holds=flat),
        verdict(f"encoder cache within its {subject.cache_budget_bytes / 1e6:,.0f} MB", holds=fits),
        verdict(f"engine's own time at 64 rows under 5% of a step ({share:.2%})", holds=share < 0.05),
    ]
    fields = {
        **asdict(subject),
        "loads": [{**asdict(load), "own_share_at_full": load.own_share_at_full} for load in loads],
        "own_time": own,
        "is_flat": flat,
        "is_cache_within_budget": fits,
        "own_share": share,
    }
    tables = f"{load_table(loads)}\n{bars(speeds)}\nthe engine alone, without a network\n{own_table(own)}\n"
    head = f"{subject.title}; windows from {subject.material}\n\n"
    return head + tables + "".join(verdicts) + json_line("engine", fields) + "\n"


def load_table(loads: Sequence[Load]) -> str:
    speed = ["windows", "per s", "× real time", "CPU ms each"]
    head = [*speed, "rows/step", "busy", "step ms", "own µs", "own share", "peak MB", "cache MB"]
    rows = [
        [
            str(load.windows),
            f"{load.windows_per_s:.2f}",
            f"{load.audio_s_per_s:.1f}",
            f"{load.cpu_s / load.windows * 1e3:.1f}",
            f"{load.mean_rows:.1f}",
            f"{load.busy_share:.1%}",
            f"{load.step_ms_at_full:.2f}",
            f"{load.own_us_at_full:.0f}",
            f"{load.own_share_at_full:.2%}",
            f"{load.peak_bytes / 1e6:,.0f}",
            f"{load.cache_bytes / 1e6:,.0f}",
        ]
        for load in loads
    ]
    return aligned([head, *rows], numbers=range(len(head)))


def own_table(own: Sequence[OwnTime]) -> str:
    head = ["windows", "callers", "rows", "µs a step", "to decide", "µs to let a window in"]
    rows = [
        [str(one.windows), str(one.callers), str(one.rows)]
        + [f"{value:.0f}" for value in (one.step_us, one.deciding_us, one.entry_us)]
        for one in own
    ]
    return aligned([head, *rows], numbers=range(len(head)))


def fairness_report(subject: Subject, measured: Fairness, file_s: float) -> str:
    idle_s = measured.idle.median_s
    waits = {
        "idle engine": measured.idle,
        "beside the file": measured.fair,
        "first come first served": measured.in_line,
    }
    rows = [waits_row(name, one, idle_s) for name, one in waits.items()]
    table = aligned(
        [["5 s clip", "sends", "median s", "worst s", "× idle", "longest step"], *rows], numbers=range(1, 5)
    )
    medians = bars([(name, one.median_s, f"{one.median_s:.2f} s") for name, one in waits.items()])
    bound = f"worst of them within 2.5 × idle + one step = {measured.bound_s:.2f} s"
    fields = {
        **asdict(subject),
        "file_s": file_s,
        "idle": measured.idle,
        "fair": measured.fair,
        "first_come_first_served": measured.in_line,
        "ratio": measured.fair.median_s / idle_s,
        "ratio_first_come": measured.in_line.median_s / idle_s,
        "bound_s": measured.bound_s,
        "holds": measured.holds,
    }
    title = f"{subject.title}; a file of {file_s:g} s from {subject.material}\n\n"
    return f"{title}{table}\n{medians}\n{verdict(bound, holds=measured.holds)}{json_line('fairness', fields)}\n"


def waits_row(name: str, waits: Waits, idle_s: float) -> list[str]:
    figures = [f"{waits.median_s:.2f}", f"{waits.worst_s:.2f}", f"{waits.median_s / idle_s:.2f}"]
    longest = f"{waits.longest_step_s:.2f} s ({waits.longest_step})"
    return [name, str(len(waits.seconds)), *figures, longest]
