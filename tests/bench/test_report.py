"""Output of benchmarks: bars, verdicts, and the JSON line with machine and commit."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from choral.bench.report import bars, json_line, verdict


def test_the_longest_bar_is_the_largest_value() -> None:
    assert bars([("one", 1.0, "1/s"), ("sixteen", 16.0, "16/s"), ("none", 0.0, "–")]) == (
        f"one      {'██▌':40}  1/s\nsixteen  {'█' * 40}  16/s\nnone     {'':40}  –\n"
    )


def test_bars_of_small_values_are_visible_and_empty_charts_are_valid() -> None:
    assert "▏" in bars([("a", 1e-9, ""), ("b", 1.0, "")])
    assert bars([]) == ""
    assert bars([("a", math.nan, "?")]).split() == ["a", "?"]


def test_json_line_has_benchmark_machine_and_commit() -> None:
    @dataclass(frozen=True)
    class Part:
        seconds: tuple[float, ...]

    line = json_line("it", {"part": Part((1 / 3, math.inf)), "name": "Grüße"})
    fields = json.loads(line)
    assert "\n" not in line
    assert (fields["benchmark"], fields["part"], fields["name"]) == ("it", {"seconds": [0.333333, None]}, "Grüße")
    assert fields["machine"]["n_cpus"] >= 1
    assert fields["machine"]["versions"].keys() > {"python", "numpy"}
    assert "commit" in fields


def test_verdict_of_met_missed_and_unmeasured_targets() -> None:
    said = [verdict("flat", holds=holds) for holds in (True, False, None)]
    assert said == ["flat: yes\n", "flat: no\n", "flat: not measured here\n"]
