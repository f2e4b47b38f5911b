"""The systemd units: verification, sandboxing and commands."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from choral.jobs.settings import WorkerSettings
from choral.server.settings import ServerSettings
from command_lines import DEPLOY, known_variables, parsed

UNITS = ("choral.service", "choral-worker.service")
EXPOSURE = 20  # of 100, and less is better; a plain service has 92
PROGRAM = "/opt/choral/bin/choral"


def values(unit: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", (DEPLOY / unit).read_text(), re.MULTILINE)


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_verifies_and_scores_the_unit(unit: str, systemd_analyze: str, tmp_path: Path) -> None:
    copy = tmp_path / unit
    copy.write_text((DEPLOY / unit).read_text().replace(PROGRAM, "/usr/bin/env choral"))  # a program that exists
    done = subprocess.run([systemd_analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    command = [systemd_analyze, "security", "--offline=true", f"--threshold={EXPOSURE}", copy]
    security = subprocess.run(command, capture_output=True, text=True, check=False)
    assert security.returncode == 0, security.stdout


@pytest.mark.parametrize("unit", UNITS)
def test_command_parses_and_has_time_to_stop(unit: str) -> None:
    [start] = values(unit, "ExecStart")
    program, *arguments = shlex.split(start)
    assert program == PROGRAM
    namespace = parsed(arguments)
    drain_s = 2 * ServerSettings().drain_s if unit == "choral.service" else WorkerSettings().drain_s
    [stop_s] = values(unit, "TimeoutStopSec")
    assert drain_s + 10 <= int(stop_s) < drain_s + 60
    assert not hasattr(namespace, "drain_s")
    [state] = values(unit, "StateDirectory")
    assert getattr(namespace, "data", f"/var/lib/{state}") == f"/var/lib/{state}"


@pytest.mark.parametrize("unit", UNITS)
def test_secrets_are_in_an_environment_file(unit: str) -> None:
    assert values(unit, "EnvironmentFile")[0].startswith("-/etc/choral/")
    text = (DEPLOY / unit).read_text()
    assert set(re.findall(r"\bCHORAL_[A-Z_]+", text)) <= known_variables()
    assert "--redis redis://" not in text
    assert "--api-key " not in text
