"""The entry point: start-up time, help, usage errors and exit codes, without a model."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import choral as package
from choral.cli import bench
from choral.cli.main import COMMANDS

Run = Callable[..., Any]
COMMAND = [sys.executable, "-m", "choral.cli.main"]


def test_help_is_fast(choral: Run) -> None:
    times = []
    for _ in range(5):
        started = time.monotonic()
        assert choral("--help").code == 0
        times.append(time.monotonic() - started)
    assert min(times) < 0.3


def test_help_imports_no_heavy_package() -> None:
    code = (
        "import sys; from choral.cli.main import main_parser; main_parser().format_help(); "
        "print([name for name in ('numpy', 'torch', 'av', 'rich', 'onnxruntime') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", [*COMMANDS, *(f"bench {name}" for name in bench.COMMANDS)])
def test_only_the_command_that_runs_is_imported(command: str) -> None:
    code = (
        "import contextlib, sys; from choral.cli.main import COMMANDS, parse\n"
        f"with contextlib.suppress(SystemExit): parse([*{command.split()!r}, '--help'])\n"
        "modules = (name.removeprefix('choral.cli.') for name in sys.modules if name.startswith('choral.cli.'))\n"
        "print(sorted(name for name in modules if name in COMMANDS or name.startswith('bench')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    has_flags_of_transcribe = command in ("align", "corpus", "submit")
    expected = ["bench", command.replace(" ", "_")] if " " in command else [command]
    expected += ["transcribe"] if has_flags_of_transcribe else []
    assert done.stdout.splitlines()[-1] == str(expected)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(choral: Run, arguments: list[str]) -> None:
    result = choral(*arguments)
    assert result.code == 0
    assert result.errors == ""
    for name in ("transcribe", "models", "doctor", "bench", "--version"):
        assert f"  {name}" in result.out


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["transcribe", "--help"], "--[no-]word-timestamps"),
        (["models", "--help"], "remove "),
        (["models"], "remove "),
        (["models", "pull", "--help"], "NAME"),
        (["doctor", "--help"], "--engine"),
        (["bench"], "wer "),
        (["bench", "wer", "--help"], "--[no-]peers"),
        (["bench", "serve", "--help"], "--concurrency"),
    ],
)
def test_every_command_has_help(choral: Run, arguments: list[str], shown: str) -> None:
    result = choral(*arguments)
    assert (result.code, result.errors) == (0, "")
    assert shown in result.out


def test_version(choral: Run) -> None:
    result = choral("--version")
    assert (result.code, result.out) == (0, f"choral {package.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sing"], "invalid choice: 'sing'"),
        (["transcribe"], "the following arguments are required: AUDIO"),
        (["transcribe", "--bogus"], "unknown option --bogus"),
        (["transcribe", "--quiet", "--beam-sise=5"], "unknown option --beam-sise (did you mean --beam-size?)"),
        (["transcribe", "-dash.wav"], "unknown option -dash.wav (if it is a file, write ./-dash.wav)"),
        (["transcribe", "a.mp3", "-dash.wav"], "(if it is a file, write ./-dash.wav)"),
        (["transcribe", "ftp://example.org/y.mp3"], "ftp URLs are not supported"),
        (["transcribe", "a.mp3", "--model", "no-such-model", "--language", "klingon"], "unknown language 'klingon'"),
        (["transcribe", "a.mp3", "--beam-sise", "5"], "unknown option --beam-sise (did you mean --beam-size?)"),
        (["transcribe", "a.mp3", "--word_timestamp"], "did you mean --word-timestamps?"),
        (["transcribe", "a.mp3", "--beam", "5"], "unknown option --beam"),
        (["transcribe", "a.mp3", "--device", "tpu"], "device is 'tpu'; it must be auto, cpu, cuda or cuda:N"),
        (["transcribe", "a.mp3", "--format", "all"], "give --output-dir"),
        (["transcribe", "a.mp3", "--format", "srt,vtt"], "give --output-dir"),
        (["models", "path", "base", "extra"], "unknown argument extra"),
        (["--nonsense"], "unknown option --nonsense"),
    ],
)
def test_usage_errors(choral: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "a.mp3").write_bytes(b"x")
    result = choral(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.errors.startswith("choral: ")
    assert message in result.errors
    assert "Traceback" not in result.errors


def test_missing_inputs_are_reported_before_a_model_is_loaded(choral: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = choral("transcribe", "no.mp3", "empty", "*.flac", "--model", "no-such-model")
    assert result.code == 3
    assert result.errors.splitlines() == [
        "choral: no.mp3: there is no such file or folder; check the spelling",
        "choral: empty: no audio or video file in this folder or below it; name files of other kinds one by one",
        "choral: *.flac: no file matches this pattern",
    ]


def test_unknown_model_suggests_names(choral: Run, tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_bytes(b"x")
    result = choral("transcribe", "a.mp3", "--model", "bass")
    assert result.code == 4
    assert "there is no model called 'bass'. Did you mean base" in result.errors


def test_output_folder_is_checked_before_a_model_is_loaded(choral: Run, tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_bytes(b"x")
    result = choral("transcribe", "a.mp3", "--output-dir", "a.mp3/out", "--model", "no-such-model")
    assert result.code == 5
    assert "a.mp3/out" in result.errors


def test_commands_name_the_extra_that_is_missing(jfk: Path) -> None:
    """In an installation without extras."""
    code = f"""
import sys
for name in ("fastapi", "h11", "uvicorn", "websockets", "redis", "prometheus_client", "psutil"):
    sys.modules[name] = None
from choral.cli.main import main
print([main(line.split()) for line in ("serve", "worker", "submit {jfk}", "jobs top", "bench engine")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[7, 7, 7, 7, 7]\n", done.stderr
    extras = re.findall(r"pip install 'choral\[(\w+)\]'", done.stderr)
    assert extras == ["server", "jobs", "jobs", "jobs", "bench"]


def test_closed_pipe_ends_help_quietly() -> None:
    process = subprocess.Popen(
        [*COMMAND, "transcribe", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_full_disk_behind_standard_output() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 5
    assert done.stderr.startswith("choral: cannot write to standard output: No space left on device")


def test_unexpected_error_keeps_its_traceback_and_asks_for_a_report() -> None:
    code = (
        "import sys, choral.cli.main as m, choral.cli.models as c\n"
        "def broken(arguments): raise ZeroDivisionError('oops')\n"
        "c.run_list = broken\n"
        "sys.exit(m.main(['models', 'list']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError: oops" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("choral: this is a bug in Choral")
