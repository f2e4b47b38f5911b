"""OpenAI's Node client for tests: runs calls and returns their results or errors."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_suffix(".mjs")
LIMIT_S = 300


@dataclass(frozen=True)
class Call:
    method: str  # transcriptions, translations, models.list or models.retrieve
    path: str | None = None  # the audio; without it a text is sent under the name
    name: str = "notes.mp3"
    model: str = "tiny"
    fields: dict[str, Any] = field(default_factory=dict)


class Fields(dict[str, Any]):
    """A JSON object whose fields are attributes, as in the Python client's results; one that is missing is None."""

    __getattr__ = dict.get


def run(folder: Path, url: str, calls: list[Call], api_key: str = "none") -> list[Fields]:
    """Run the calls concurrently in one Node process; each outcome has `answer` or `error`, in the order of calls."""
    order = {
        "folder": str(folder),
        "baseURL": f"{url}/v1",
        "apiKey": api_key,
        "calls": [asdict(call) for call in calls],
    }
    done = subprocess.run(
        ["node", SCRIPT], input=json.dumps(order), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    outcomes: list[Fields] = json.loads(done.stdout, object_hook=Fields)
    return outcomes
