"""CPU time of a server by the kind of its processes: the event loop, live sessions, requests and the engine."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import psutil

from choral.bench.process_tree import process_tree

# The modules that Choral's processes run, as their command lines name them.
KINDS = {"session_process": "sessions", "request_process": "requests", "engine_main": "engine"}


@dataclass(frozen=True)
class ServerCpu:
    """CPU seconds of each kind."""

    server: float = 0.0  # the process of the event loop, with all else that it runs
    sessions: float = 0.0
    requests: float = 0.0
    engine: float = 0.0

    def since(self, before: ServerCpu) -> ServerCpu:
        return ServerCpu(**{kind: value - getattr(before, kind) for kind, value in vars(self).items()})

    def per(self, seconds: float) -> ServerCpu:
        return ServerCpu(**{kind: value / seconds for kind, value in vars(self).items()})


def server_cpu(pid: int) -> ServerCpu:
    """So far, of the processes that run now."""
    used = dict.fromkeys(vars(ServerCpu()), 0.0)
    for process in process_tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times, command = process.cpu_times(), " ".join(process.cmdline())
            kind = next((kind for module, kind in KINDS.items() if module in command), "server")
            used[kind] += times.user + times.system
    return ServerCpu(**used)
