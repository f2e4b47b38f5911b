"""`choral bench gpu`: is it right, how fast is it, and how near is that to what the GPU allows."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser, describe
from choral.cli.console import format_table, message, write_stdout
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.bench.gpu_checks import Check
    from choral.bench.gpu_limits import Ceilings, Share, StepShare
    from choral.bench.gpu_load import Loads
    from choral.bench.gpu_quality import Quality

DESCRIPTION = """\
How fast one GPU serves, with random weights in the shapes of large-v3 and large-v3-turbo: nothing is
fetched, and speed depends on shapes alone. Checks come first: kernels against torch, and whole
windows against the CPU. Every load is the median of three runs.

The loads: one window on an idle engine (100 tokens); short requests (10 s of audio, 27 tokens) from
10 and from 50 callers; 512 windows of 100 tokens at once. All of them start from samples.

With a FOLDER of speech and its texts, as `choral bench wer` reads it, a real model also shows what
fewer bits cost in words.
"""
SHAPES, COMPUTE_TYPES = ("large-v3", "large-v3-turbo"), ("bfloat16", "fp8")
STEP_ROWS, STEP_WRITTEN = (1, 64, 256), 50


@dataclass(frozen=True)
class Result:
    shape: str
    compute_type: str
    start_s: float  # until the engine is ready, from random weights in memory
    loads: Loads
    encoder: Share
    steps: tuple[StepShare, ...]
    whole: Share


def add_gpu(actions: argparse._SubParsersAction[Any]) -> None:
    gpu: Parser = actions.add_parser(
        "gpu",
        help="speed on a GPU, checked against the CPU and the hardware's limits",
        usage="choral bench gpu [FOLDER] [options]",
        description=DESCRIPTION,
    )
    gpu.add_argument("folder", nargs="?", metavar="FOLDER", help=argparse.SUPPRESS)
    gpu.add_argument("--model", default="tiny.en", metavar="NAME", help=describe("for FOLDER", "tiny.en"))
    gpu.add_argument("--device", default="cuda", metavar="DEVICE", help=describe("cuda or cuda:N", "cuda"))
    gpu.add_argument(
        "--shapes", metavar="NAME,…", default=",".join(SHAPES), help=f"of {', '.join(SHAPES)} (default: both)"
    )
    gpu.add_argument(
        "--compute-types",
        metavar="NAME,…",
        default=",".join(COMPUTE_TYPES),
        help=f"float16, bfloat16, fp8 (default: {' and '.join(COMPUTE_TYPES)})",
    )
    gpu.add_argument("--no-transformers", action="store_true", help="leave the comparison with transformers out")
    gpu.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    shapes = chosen(arguments.shapes, SHAPES, "--shapes")
    compute_types = chosen(arguments.compute_types, ("float16", *COMPUTE_TYPES), "--compute-types")
    device = arguments.device
    require_gpu(device)

    import torch

    from choral.bench.gpu_limits import ceilings
    from choral.bench.report import json_line

    checks = checked(device)
    qualities = compare_words(arguments, compute_types) if arguments.folder else []
    message("what the GPU allows")
    top = ceilings(torch.device(device))
    torch.cuda.empty_cache()
    results = [measure(shape, compute_type, device, top) for shape in shapes for compute_type in compute_types]
    others = {} if arguments.no_transformers else beside_transformers(shapes, device)
    write_stdout(table(results, others))
    write_stdout(limits_table(top, results))
    write_stdout(breakdown_table(results))
    facts = {
        "device": torch.cuda.get_device_name(device),
        "checks": checks,
        "qualities": qualities,
        "ceilings": asdict(top),
        "results": results,
        "transformers_windows_per_s": others,
    }
    write_stdout(json_line("gpu", facts) + "\n")
    return 0 if all(check.holds for check in checks) else 1


def chosen(names: str, known: Sequence[str], flag: str) -> list[str]:
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted or any(name not in known for name in wanted):
        raise UsageError(f"{flag} is {names!r}; it takes {', '.join(known)}, with commas between")
    return wanted


def require_gpu(device: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise UsageError("this needs PyTorch: pip install 'choral[torch]'")

    from choral.bench.random_model import dims_of
    from choral.engine.torch_device import has_gpu_path, pick_device

    pick_device(device)
    if not has_gpu_path(device, dims_of("tiny")):
        raise UsageError("this measures a GPU, and needs one that torch sees, and Triton: `choral doctor` says more")


def checked(device: str) -> list[Check]:
    import torch

    from choral.bench.gpu_checks import check_kernels, check_windows

    message("checking kernels and whole windows")
    checks = [*check_kernels(torch.device(device)), *check_windows(device)]
    wrong = [check for check in checks if not check.holds]
    for check in wrong:
        write_stdout(f"WRONG  {check.name}: {check.error:.2g}, at most {check.tolerance:.2g} is right\n")
    write_stdout(f"{len(checks) - len(wrong)} of {len(checks)} checks hold\n\n")
    return checks


def compare_words(arguments: argparse.Namespace, compute_types: Sequence[str]) -> list[Quality]:
    import numpy as np

    from choral.audio.recording import Recording
    from choral.bench import gpu_quality, wer
    from choral.bench.corpus import read_corpus
    from choral.model.store import ModelStore
    from choral.model.weights import open_checkpoint

    speech = []
    for clip in read_corpus(Path(arguments.folder)):
        with Recording.open(clip.path) as recording:
            samples = recording.samples(0, recording.n_samples)
        speech.append(gpu_quality.Speech(np.array(samples), clip.text))
    normalise = wer.normaliser("en")
    message(f"{arguments.model} on {len(speech)} clips")
    checkpoint = open_checkpoint(ModelStore().resolve(arguments.model))
    kinds = ["float32", "float16", *compute_types]
    found = gpu_quality.measure(
        checkpoint,
        speech,
        arguments.device,
        kinds,  # type: ignore[arg-type]
        lambda said, heard: wer.score(said, heard, normalise),
    )
    write_stdout(words_table(arguments.model, found))
    return found


def words_table(model: str, found: Sequence[Quality]) -> str:
    rows = [[model, "tokens as in float32 on the CPU", "not worse", "word error rate"]]
    for one in found:
        same, not_worse = f"{one.same_tokens} of {one.n_clips}", f"{one.not_worse} of {one.n_clips}"
        rows.append([f"{one.compute_type} on {one.device}", same, not_worse, f"{one.wer_percent:.2f}%"])
    return format_table(rows, numbers=(1, 2, 3)) + "\n"


def measure(shape: str, compute_type: str, device: str, top: Ceilings) -> Result:
    import torch

    from choral.bench.gpu_limits import encoder_share, step_share, window_share
    from choral.bench.gpu_load import LONG_TOKENS, LoadMaker
    from choral.bench.random_model import random_checkpoint
    from choral.config import EngineSettings
    from choral.engine.engine import Engine
    from choral.engine.gpu_runner import GpuRunner
    from choral.model.tokenizer import Tokenizer

    message(f"{shape} in {compute_type}: starting")
    checkpoint = random_checkpoint(shape)
    dims, tokenizer = checkpoint.dims, Tokenizer.for_checkpoint(checkpoint.dims)
    settings = EngineSettings(device=device, compute_type=compute_type, warm_up=True)  # type: ignore[arg-type]
    started_s = time.perf_counter()
    runner = GpuRunner(checkpoint, tokenizer, settings)
    runner_s = time.perf_counter() - started_s
    with torch.inference_mode():
        rows = [n for n in STEP_ROWS if n <= runner.capacity.n_slots]
        encoder = encoder_share(runner, dims, top)
        steps = tuple(step_share(runner, dims, top, n, STEP_WRITTEN) for n in rows)
    started_s = time.perf_counter()
    engine = Engine(runner, settings)
    start_s = runner_s + time.perf_counter() - started_s
    try:
        loads = LoadMaker(engine, tokenizer).measure(lambda what: message(f"{shape} in {compute_type}: {what}"))
    finally:
        engine.close()
    whole = window_share(runner, dims, top, loads.windows_per_s, LONG_TOKENS)
    del engine, runner
    gc.collect()
    torch.cuda.empty_cache()
    return Result(shape, compute_type, start_s, loads, encoder, steps, whole)


def beside_transformers(shapes: Sequence[str], device: str) -> dict[str, float]:
    import torch

    from choral.bench.gpu_transformers import windows_per_s

    if importlib.util.find_spec("transformers") is None:
        write_stdout("note: transformers is not installed, and not compared with\n\n")
        return {}
    found = {}
    for shape in shapes:
        message(f"transformers, {shape}")
        found[shape] = windows_per_s(shape, torch.device(device))
        gc.collect()
        torch.cuda.empty_cache()
    return found


def table(results: Sequence[Result], others: dict[str, float]) -> str:
    loads = ("one window", "10 callers", "50 callers", "mean latency", "first token p50/p95", "saturated", "real time")
    rows = [["", "ready in", *loads, "× transformers"]]
    for result in results:
        measured, (few, many) = result.loads, result.loads.requests
        ratio = measured.windows_per_s / others[result.shape] if result.shape in others else None
        rows.append(
            [
                f"{result.shape} {result.compute_type}",
                f"{result.start_s:.1f} s",
                f"{measured.single_ms:.0f} ms",
                f"{few.requests_per_s:.1f}/s",
                f"{many.requests_per_s:.1f}/s",
                f"{many.mean_latency_ms:.0f} ms",
                f"{many.first_token_p50_ms:.0f}/{many.first_token_p95_ms:.0f} ms",
                f"{measured.windows_per_s:.1f} windows/s",
                f"{measured.times_real_time:,.0f} ×",
                "" if ratio is None else f"{ratio:.1f}",
            ]
        )
    return format_table(rows, numbers=range(1, len(rows[0]))) + "\n"


def limits_table(top: Ceilings, results: Sequence[Result]) -> str:
    first = (
        f"this GPU: copies {top.copy_tb_s:.2f} TB/s, products {top.product_tflop_s:.0f} TFLOP/s in bfloat16, "
        f"attention {top.attention_tflop_s:.0f} TFLOP/s\n"
    )
    rows = [["", "", "takes", "at its limit", "share"]]
    for result in results:
        for share in (result.encoder, *result.steps, result.whole):
            name = f"{result.shape} {result.compute_type}"
            takes, limit = f"{share.measured_ms:.2f} ms", f"{share.limit_ms:.2f} ms"
            rows.append([name, share.name, takes, limit, f"{share.share:.0%}"])
    return first + format_table(rows, numbers=(2, 3, 4)) + "\n"


def breakdown_table(results: Sequence[Result]) -> str:
    """Of each step, what its kernels take."""
    kinds = list(dict.fromkeys(kind for result in results for step in result.steps for kind in step.breakdown.kind_us))
    rows = [["kernels of a step, µs", "", *kinds, "launches"]]
    for result in results:
        for step in result.steps:
            times = [f"{step.breakdown.kind_us.get(kind, 0):.0f}" for kind in kinds]
            name = f"{result.shape} {result.compute_type}"
            rows.append([name, step.name, *times, str(step.breakdown.n_kernels)])
    return format_table(rows, numbers=range(2, len(rows[0]))) + "\n"
