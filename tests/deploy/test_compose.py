"""The compose files: schema, commands, mounts, networks and variables."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from choral.jobs.settings import WorkerSettings
from choral.server.settings import ServerSettings
from command_lines import DEPLOY, known_variables, parsed

FILES = ("compose.yaml", "compose.gpu.yaml")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def filled(text: str) -> str:
    """Variables with their defaults, as compose fills them in."""
    return re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text)


@pytest.mark.parametrize("file", FILES)
def test_compose_schema(file: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(DEPLOY / file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["server", "worker"])
def test_commands_parse_and_have_time_to_stop(name: str) -> None:
    arguments = parsed([filled(each) for each in SERVICES[name]["command"]])
    assert arguments.model == (["base"] if name == "server" else "base")  # a server may have several
    grace_s = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    drain_s = 2 * ServerSettings().drain_s if name == "server" else WorkerSettings().drain_s
    assert drain_s + 10 <= grace_s < drain_s + 60
    assert not hasattr(arguments, "drain_s")


def test_variables_are_documented_and_required() -> None:
    text = "".join((DEPLOY / file).read_text() for file in FILES)
    wanted = set(re.findall(r"\$\{(\w+)", text))
    assert wanted == set(re.findall(r"^(\w+)=", (DEPLOY / "env.example").read_text(), re.MULTILINE))
    given = {name for service in SERVICES.values() for name in service.get("environment", {})}
    assert {name for name in given if name.startswith("CHORAL_")} <= known_variables()
    assert COMPOSE["secrets"]["choral_api_key"] == {"environment": "CHORAL_API_KEY"}


def test_mounts_and_networks_exist() -> None:
    used = [mount.split(":")[0] for service in SERVICES.values() for mount in service["volumes"]]
    assert {name for name in used if name[0] not in "./"} == set(COMPOSE["volumes"])
    for place in (name for name in used if name.startswith("./")):
        assert (DEPLOY / place).exists(), place
    networks = {network for service in SERVICES.values() for network in service["networks"]}
    assert networks == set(COMPOSE["networks"])
    for gpu in yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text())["services"]:
        assert gpu in SERVICES


def test_ports_are_local_and_redis_is_internal() -> None:
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert SERVICES["redis"]["networks"] == ["queue"]
    assert COMPOSE["networks"]["queue"] == {"internal": True}
    redis = SERVICES["redis"]["command"]
    assert redis[redis.index("--appendonly") + 1] == "yes"
    assert redis[redis.index("--maxmemory-policy") + 1] == "noeviction"
    assert SERVICES["redis"]["healthcheck"]["test"] == ["CMD", "redis-cli", "ping"]


def test_redis_command_starts(redis_program: None, tmp_path: Path) -> None:
    """Start the real program with the flags of the compose file."""
    flags = [*SERVICES["redis"]["command"][1:], "--port", "0", "--dir", str(tmp_path), "--unixsocket", "here.sock"]
    redis = subprocess.Popen(["redis-server", *flags], stdout=subprocess.PIPE, text=True)
    assert redis.stdout is not None
    with redis.stdout:
        while "ready to accept connections" not in (line := redis.stdout.readline()).lower():
            assert line, "it ended"
    redis.terminate()
    assert redis.wait(20) == 0
    assert any(tmp_path.rglob("appendonly*"))
