"""Every file directly in benchmarks/ is a script with --help, and is listed in benchmarks/README.md."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

import plot
from choral.errors import UsageError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("script", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_every_script_has_help(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python benchmarks/{script.name} ")
    assert f"`python benchmarks/{script.name} " in (BENCHMARKS / "README.md").read_text()


def test_plot_of_both_benchmarks(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = {"benchmark": "files", "results": [{"n_files": 1, "audio_s": 60, "wall_s": 2}]}
    serve = {"benchmark": "serve", "levels": [{"callers": 8, "server": {"requests_per_s": 5.5}}]}
    (tmp_path / "results.txt").write_text(f"a table\n{json.dumps(files)}\n{json.dumps(serve)}\n")
    lines = list(plot.read_result(f"now={tmp_path / 'results.txt'}"))
    assert lines == [
        plot.ThroughputLine("files", "now", [(1, 30.0)]),
        plot.ThroughputLine("serve", "now", [(8, 5.5)]),
    ]
    plot.draw(tmp_path / "plot.svg", lines)
    assert (tmp_path / "plot.svg").read_text().count("<!-- now -->") == 2
    (tmp_path / "empty.txt").write_text("no results")
    with pytest.raises(UsageError, match="has no line of JSON"):
        list(plot.read_result(str(tmp_path / "empty.txt")))
