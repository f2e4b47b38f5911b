"""The image, as far as it can be checked without a Docker engine: lint, copied files and commands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from choral.server.settings import ServerSettings
from command_lines import DEPLOY, ROOT, known_variables, parsed

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
LINES = re.sub(r"\\\n\s*", "", DOCKERFILE).splitlines()


def instruction(name: str) -> str:
    """The last instruction of this name, which is the effective one."""
    return [line for line in LINES if line.startswith(f"{name} ")][-1].removeprefix(f"{name} ")


def test_hadolint() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert program is not None, "the extra `test` brings it"
    done = subprocess.run([program, str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_copied_files_exist_and_context_is_minimal() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [line.split()[1:-1] for line in LINES if line.startswith("COPY ") and "--from" not in line]
    sources = sorted({source for sources in copied for source in sources})
    assert sources == sorted(kept)
    assert all((ROOT / source).exists() for source in sources)
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()
    assert not any(fnmatch(source, "*.env") for source in sources)


def test_requirements_of_both_variants() -> None:
    def asked(*arguments: str) -> set[str]:
        command = [sys.executable, str(DEPLOY / "requirements.py"), *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return {re.split(r"[><=]", line)[0] for line in done.stdout.splitlines()}

    cpu, cuda = asked("cpu", ""), asked("cuda", "")
    assert {"numpy", "ctranslate2", "fastapi", "redis", "opentelemetry-sdk"} <= cpu
    assert cuda - cpu == {"torch"}
    assert asked("cpu", "torch") - asked("cpu", "server") == {"torch"}
    variants = {line.split()[-1] for line in LINES if line.startswith("FROM base AS")}
    assert {"cpu", "cuda"} <= variants
    assert "FROM ${VARIANT} AS final" in LINES


def test_command_parses_and_user_is_unprivileged() -> None:
    assert json.loads(instruction("ENTRYPOINT")) == ["choral"]
    arguments = parsed(json.loads(instruction("CMD")))
    assert (arguments.host, arguments.data) == ("0.0.0.0", "/data")
    assert json.loads(instruction("VOLUME")) == ["/models", "/data"]
    assert instruction("USER") == "10001"
    assert instruction("EXPOSE") == str(ServerSettings().port)
    assert set(re.findall(r"\b(CHORAL_[A-Z_]+)=", DOCKERFILE)) <= known_variables()


@pytest.mark.parametrize("word", ["password", "secret", "token", "api_key"])
def test_image_contains_no_secrets(word: str) -> None:
    assert word not in DOCKERFILE.lower()
