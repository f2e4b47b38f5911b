"""The table of limits in docs/operate.md has every flag with a number, and its default."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from choral.cli import serve
from choral.server.settings import JobSettings, ServerSettings
from choral.serving.settings import ServingSettings

DOCS = Path(__file__).parents[2] / "docs" / "operate.md"
FLAGS = [
    (field.name, field.default)
    for settings, names in (
        (ServerSettings, serve.LIMIT_FLAGS + serve.REALTIME_FLAGS),
        (JobSettings, serve.JOB_FLAGS),
        (ServingSettings, serve.PREP_FLAGS),
    )
    for field in dataclasses.fields(settings)
    if field.name in names and isinstance(field.default, int | float) and field.default >= 0  # -1: the server's choice
]


@pytest.mark.parametrize(("name", "default"), FLAGS)
def test_limit_is_in_the_table(name: str, default: float) -> None:
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| ([\d,.]+) \| .* \|$", DOCS.read_text(), re.MULTILINE))
    number = rows[f"--{name.replace('_', '-')}"]
    assert float(number.replace(",", "")) == default


def test_every_numeric_setting_of_the_server_is_a_flag() -> None:
    fields = dataclasses.fields(ServerSettings)
    numeric = {field.name for field in fields if type(field.default) in (int, float)}
    assert numeric - {"port", "wyoming_port"} == set(serve.LIMIT_FLAGS + serve.REALTIME_FLAGS)
