"""A process of its own for one system: `python -m choral.bench.child`, told what to do in lines of JSON.

The first line on standard input is the system to open; each one after it is a list of requests to run. Every line is
answered with one on standard output. What libraries print goes to standard error. A failure ends the process.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from choral.bench.clips import AudioFile
from choral.bench.load_generator import RoundResult
from choral.bench.systems.spec import PeerConfig, System


@dataclasses.dataclass(frozen=True)
class Reply:
    run: RoundResult | None
    peak_bytes: int


def main() -> None:
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(run: RoundResult | None) -> None:
        print(json.dumps(dataclasses.asdict(Reply(run, peak_bytes()))), file=replies, flush=True)

    system = open_system(PeerConfig(**json.loads(sys.stdin.readline())))
    answer(None)
    for line in sys.stdin:
        answer(system.run(read_requests(line)))


def open_system(spec: PeerConfig) -> System:
    system: System = importlib.import_module(f"choral.bench.systems.{spec.library}").open_system(spec)
    return system


def read_requests(line: str) -> Sequence[AudioFile]:
    return [AudioFile(**fields) for fields in json.loads(line)]


def peak_bytes() -> int:
    """The most memory this process has had; what the parent had before the program began does not count."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
