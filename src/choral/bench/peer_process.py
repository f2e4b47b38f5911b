"""A peer in its own process: `python -m choral.bench.peer_process` opens one and runs rounds of requests through it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from choral.bench.clips import AudioFile
from choral.bench.json_process import JsonProcess, serve_messages
from choral.bench.load_generator import RoundResult, send_all, send_together
from choral.bench.peers import BatchPeer, PeerConfig, open_peer
from choral.bench.process_tree import PeakMemory

PEER_MODULE = "choral.bench.peer_process"


class PeerProcess(JsonProcess):
    """The parent's side, with the peak memory of the process; `module` is the program that opens the peer."""

    def __init__(self, config: PeerConfig, module: str = PEER_MODULE) -> None:
        self.peak_bytes = 0
        environment = {"OMP_NUM_THREADS": str(config.threads), "TOKENIZERS_PARALLELISM": "false"}
        super().__init__(module, dataclasses.asdict(config), environment)

    def request(self, message: Any) -> Any:
        with PeakMemory(self.pid) as memory:
            reply = super().request(message)
        self.peak_bytes = max(self.peak_bytes, memory.peak_bytes)
        return reply

    def run(self, files: Sequence[AudioFile]) -> RoundResult:
        fields = self.request([dataclasses.asdict(file) for file in files])
        return RoundResult(**{**fields, "texts": tuple(fields["texts"]), "latencies_s": tuple(fields["latencies_s"])})


def open_handler(fields: dict[str, Any]) -> Callable[[Any], RoundResult]:
    config = PeerConfig(**fields)
    peer = open_peer(config)

    def run_round(message: list[dict[str, Any]]) -> RoundResult:
        files = [AudioFile(**fields) for fields in message]
        clips = [(file.samples(), file.language) for file in files]
        if config.batch_size and isinstance(peer, BatchPeer):
            return send_together(peer.transcribe_batch, clips)
        return send_all(lambda clip: peer.transcribe(*clip).text, clips, config.n_callers)

    return run_round


if __name__ == "__main__":
    serve_messages(open_handler)
