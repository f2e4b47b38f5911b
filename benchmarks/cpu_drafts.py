"""Would a draft model pay on this CPU? Times of decoder passes on torch, with random weights in real shapes.

Prints what a pass of 1 and of several tokens takes, and from that the expected speed with tokens drafted by `tiny`: the
best number of drafts for each share of accepted tokens, against decoding without a draft (1 is as fast).
"""

from __future__ import annotations

import argparse
import time

import torch

from choral.bench.random_model import random_checkpoint
from choral.bench.report import json_line
from choral.cli.arguments import Parser, describe
from choral.cli.bench import require_counts
from choral.cli.console import format_table, write_stdout
from choral.model.kv_cache import BatchRows, KVCache
from choral.model.whisper import Whisper
from support.script import run_script

DRAFT, MODELS = "tiny", ("base", "small")
ROWS, TOKENS = (1, 8), (1, 3, 5, 7, 9)
ACCEPTED = (0.7, 0.8, 0.9)
LENGTH = 40  # tokens before a step
CPU = torch.device("cpu")

Passes = dict[tuple[int, int], float]  # seconds by rows and tokens


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--repeats", type=int, default=12, metavar="N", help=describe("of each pass; the best counts", 12)
    )


@torch.inference_mode()
def time_passes(shape: str, repeats: int) -> Passes:
    network = Whisper.from_checkpoint(checkpoint := random_checkpoint(shape), CPU, torch.float32)
    dims, passes = checkpoint.dims, Passes()
    for n_rows in ROWS:
        kv_cache, slots = KVCache(dims, n_rows, CPU, torch.float32), list(range(n_rows))
        network.decoder.write_cross_kv(torch.randn(n_rows, dims.n_audio_ctx, dims.n_audio_state), slots, kv_cache)
        for n_tokens in TOKENS:
            rows = BatchRows.for_prefill(slots, [n_tokens] * n_rows, CPU)
            if n_tokens == 1:
                rows = BatchRows.for_decode(slots, [LENGTH] * n_rows, [(slot, 1) for slot in slots], CPU)
            tokens = torch.randint(0, 50_000, (n_rows, n_tokens))
            passes[n_rows, n_tokens] = min(time_pass(network, tokens, rows, kv_cache) for _ in range(repeats))
    return passes


def time_pass(network: Whisper, tokens: torch.Tensor, rows: BatchRows, kv_cache: KVCache) -> float:
    started_s = time.perf_counter()
    states = network.decoder(tokens, rows, kv_cache)
    network.decoder.logits(states.flatten(0, 1))
    return time.perf_counter() - started_s


def best_gain(model: Passes, draft: Passes, n_rows: int, accepted: float) -> tuple[float, int]:
    """How much faster, and with how many drafts."""
    gains = []
    for n_tokens in TOKENS[1:]:
        given = sum(accepted**n for n in range(n_tokens))
        step_s = (n_tokens - 1) * draft[n_rows, 1] + model[n_rows, n_tokens]
        gains.append((given * model[n_rows, 1] / step_s, n_tokens - 1))
    return max(gains)


def measure(arguments: argparse.Namespace) -> int:
    require_counts(arguments, repeats=1)
    passes = {shape: time_passes(shape, arguments.repeats) for shape in (DRAFT, *MODELS)}
    rows = [["ms a pass", "rows", *(f"{n} tokens" for n in TOKENS)]]
    rows += [
        [name, str(n), *(f"{1e3 * times[n, k]:.1f}" for k in TOKENS)] for name, times in passes.items() for n in ROWS
    ]
    write_stdout(format_table(rows, numbers=range(1, len(rows[0]))) + "\n\n")
    found = [[f"{DRAFT} for", "rows", *(f"{share:.0%} accepted" for share in ACCEPTED)]]
    for name in MODELS:
        for n in ROWS:
            gains = [best_gain(passes[name], passes[DRAFT], n, share) for share in ACCEPTED]
            found.append([name, str(n), *(f"{gain:.2f} × with {drafts}" for gain, drafts in gains)])
    write_stdout(format_table(found, numbers=range(1, len(found[0]))) + "\n")
    write_stdout(json_line("cpu_drafts", {"passes": rows[1:], "gains": found[1:]}) + "\n")
    return 0


if __name__ == "__main__":
    run_script(__doc__ or "", add_arguments, measure, usage="[options]", has_machine_flags=False)
