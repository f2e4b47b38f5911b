"""The other end of `child`: starts a system in a process of its own and sends it requests, one round at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from choral.bench.clips import AudioFile
from choral.bench.load_generator import RoundResult, Stages
from choral.bench.systems.spec import PeerConfig
from choral.errors import EngineError

CLOSING_S = 10


class PeerFailed(EngineError):
    """This system could not be opened or run here; the text is the last thing it said."""


class PeerProcess:
    """Opens the system and waits until it is ready; with several of them, only one at a time has work."""

    def __init__(self, spec: PeerConfig) -> None:
        self.spec = spec
        self.peak_bytes = 0
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed with the process)
        threads = str(spec.threads)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "choral.bench.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            encoding="utf-8",
            env={**os.environ, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"},
        )
        try:
            self._ask(dataclasses.asdict(spec))
        except BaseException:
            self.close()
            raise

    def run(self, requests: Sequence[AudioFile]) -> RoundResult:
        fields = self._ask([dataclasses.asdict(request) for request in requests])
        stages = fields["stages"]
        return RoundResult(
            texts=tuple(fields["texts"]),
            latencies_s=tuple(fields["latencies_s"]),
            wall_s=fields["wall_s"],
            cpu_s=fields["cpu_s"],
            idle_share=fields["idle_share"],
            stages=Stages(**stages) if stages is not None else None,
        )

    def close(self) -> None:
        process = self._process
        if process.stdin is not None and not process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._said.close()

    def _ask(self, question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerFailed(self._last_words()) from error
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(self._last_words())
        reply = json.loads(line)
        self.peak_bytes = reply["peak_bytes"]
        return reply["run"]

    def _last_words(self) -> str:
        code = self._process.wait()
        self._said.seek(0)
        lines = [line.strip() for line in self._said if line.strip()]
        return lines[-1] if lines else f"it ended with code {code}"
