"""`choral bench gpu`: correctness of the GPU's results, speed, and the share of the hardware's limits."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from choral.cli.arguments import Parser, describe
from choral.cli.console import message, write_stdout
from choral.cli.gpu_tables import kernel_table, limits_table, quality_table, speculation_table, speed_table
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.bench.gpu_checks import Check
    from choral.bench.gpu_limits import HardwareLimits, LimitShare, StepShare
    from choral.bench.gpu_load import GpuLoadResult
    from choral.bench.gpu_quality import Quality
    from choral.bench.gpu_speculation import SpeculationResult

USAGE = "choral bench gpu [FOLDER] [options]"
DESCRIPTION = """\
Speed of one GPU, with random weights in the shapes of large-v3 and large-v3-turbo: nothing is downloaded,
and speed depends on shapes alone. Checks come first: kernels against torch, and whole windows against the
CPU. Every load is the median of three runs.

The loads: one window on an idle engine (100 tokens); short requests (10 s of audio, 27 tokens) from
10 and from 50 callers; 512 windows of 100 tokens at once. All of them start from samples.

With a FOLDER of speech and transcripts, as for `choral bench wer`, a real model also shows what lower
precision costs in accuracy.
"""
LARGE_SHAPES, COMPUTE_TYPES = ("large-v3", "large-v3-turbo"), ("bfloat16", "fp8")
STEP_ROWS, STEP_TOKENS = (1, 64, 256), 50


@dataclass(frozen=True)
class GpuResult:
    """One shape in one compute type; the field names are those of the JSON line."""

    shape: str
    compute_type: str
    start_s: float  # until the engine is ready, from random weights in memory
    loads: GpuLoadResult
    encoder: LimitShare
    steps: tuple[StepShare, ...]
    whole: LimitShare

    @property
    def name(self) -> str:
        return f"{self.shape} {self.compute_type}"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--model", default="tiny.en", metavar="NAME", help=describe("for FOLDER", "tiny.en"))
    parser.add_argument("--device", default="cuda", metavar="DEVICE", help=describe("cuda or cuda:N", "cuda"))
    parser.add_argument(
        "--shapes",
        metavar="NAME,…",
        default=",".join(LARGE_SHAPES),
        help=f"of {', '.join(LARGE_SHAPES)} (default: both)",
    )
    parser.add_argument(
        "--compute-types",
        metavar="NAME,…",
        default=",".join(COMPUTE_TYPES),
        help=f"float16, bfloat16, fp8 (default: {' and '.join(COMPUTE_TYPES)})",
    )
    parser.add_argument("--no-drafts", action="store_true", help="leave out the measurements with a draft model")
    parser.add_argument("--no-transformers", action="store_true", help="leave out the comparison with transformers")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    shapes = read_names(arguments.shapes, LARGE_SHAPES, "--shapes")
    compute_types = read_names(arguments.compute_types, ("float16", *COMPUTE_TYPES), "--compute-types")
    device = arguments.device
    require_gpu(device)

    import torch

    from choral.bench.gpu_limits import measure_limits
    from choral.bench.report import json_line

    checks = [*run_checks(device), *run_invariance(arguments, compute_types)]
    qualities = compare_precisions(arguments, compute_types) if arguments.folder else []
    message("measuring the hardware's limits")
    limits = measure_limits(torch.device(device))
    torch.cuda.empty_cache()
    results = [measure(shape, compute_type, device, limits) for shape in shapes for compute_type in compute_types]
    speculation = [] if arguments.no_drafts else run_speculation(shapes, compute_types, device)
    transformers = {} if arguments.no_transformers else measure_transformers(shapes, device)
    write_stdout(speed_table(results, transformers) + limits_table(limits, results) + kernel_table(results))
    write_stdout(speculation_table(speculation))
    fields = {
        "device": torch.cuda.get_device_name(device),
        "checks": checks,
        "qualities": qualities,
        "limits": limits,
        "results": results,
        "speculation": speculation,
        "transformers_windows_per_s": transformers,
    }
    write_stdout(json_line("gpu", fields) + "\n")
    return 0 if all(check.holds for check in checks) else 1


def read_names(value: str, known: Sequence[str], flag: str) -> list[str]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names or any(name not in known for name in names):
        raise UsageError(f"{flag} is {value!r}; it takes {', '.join(known)}, separated by commas")
    return names


def require_gpu(device: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise UsageError("this needs PyTorch: pip install 'choral[torch]'")

    from choral.bench.random_model import SHAPES
    from choral.engine.torch_device import has_gpu_path, pick_device

    pick_device(device)
    if not has_gpu_path(device, SHAPES["tiny"]):
        raise UsageError("this benchmark needs Triton and a GPU that torch can use: see `choral doctor`")


def run_checks(device: str) -> list[Check]:
    import torch

    from choral.bench.gpu_checks import check_kernels, check_windows

    message("checking kernels and whole windows")
    checks = [*check_kernels(torch.device(device)), *check_windows(device)]
    wrong = [check for check in checks if not check.holds]
    for check in wrong:
        write_stdout(f"WRONG  {check.name}: the error is {check.error:.2g}, the tolerance {check.tolerance:.2g}\n")
    write_stdout(f"{len(checks) - len(wrong)} of {len(checks)} checks hold\n\n")
    return checks


def run_invariance(arguments: argparse.Namespace, compute_types: Sequence[str]) -> list[Check]:
    """With a FOLDER the model's results of its clips, otherwise random weights in the shape of tiny."""
    from choral.audio.constants import WINDOW_SAMPLES
    from choral.bench import gpu_invariance
    from choral.bench.clips import AudioClip, read_samples
    from choral.bench.gpu_checks import Check
    from choral.bench.gpu_quality import window_of
    from choral.bench.labelled_clips import read_corpus
    from choral.bench.random_model import random_checkpoint
    from choral.model.store import ModelStore
    from choral.model.weights import open_checkpoint

    if arguments.folder:
        checkpoint = open_checkpoint(ModelStore().resolve(arguments.model))
        clips = [AudioClip(read_samples(clip.path), clip.text, "en") for clip in read_corpus(Path(arguments.folder))]
        short = [clip for clip in clips if clip.samples.size <= WINDOW_SAMPLES]
        audios = [window_of(clip) for clip in short[: gpu_invariance.N_WINDOWS]]
    else:
        checkpoint, audios = random_checkpoint("tiny"), gpu_invariance.noise_windows()
    checks = []
    for compute_type in dict.fromkeys(["float32", "float16", *compute_types]):
        message(f"the same results alone and in a crowd, {compute_type}")
        n_different, n_all = gpu_invariance.count_different(checkpoint, audios, arguments.device, compute_type)  # type: ignore[arg-type]
        checks.append(
            Check(f"of {n_all} results in a crowd, differing from those alone, {compute_type}", n_different, 0)
        )
        write_stdout(f"{compute_type}: {n_different} of {n_all} results in a crowd differ from those alone\n")
    write_stdout("\n")
    return checks


def run_speculation(shapes: Sequence[str], compute_types: Sequence[str], device: str) -> list[SpeculationResult]:
    from choral.bench.gpu_speculation import measure_speculation

    def report(name: str) -> Callable[[str], None]:
        return lambda step: message(f"{name} with a draft: {step}")

    return [
        result
        for shape in shapes
        for compute_type in compute_types
        for result in measure_speculation(shape, compute_type, device, on_progress=report(f"{shape} {compute_type}"))  # type: ignore[arg-type]
    ]


def compare_precisions(arguments: argparse.Namespace, compute_types: Sequence[str]) -> list[Quality]:
    from choral.bench import gpu_quality, wer
    from choral.bench.clips import AudioClip, read_samples
    from choral.bench.labelled_clips import read_corpus
    from choral.model.store import ModelStore
    from choral.model.weights import open_checkpoint

    clips = [AudioClip(read_samples(clip.path), clip.text, "en") for clip in read_corpus(Path(arguments.folder))]
    normalise = wer.normaliser("en")
    message(f"{arguments.model} on {len(clips)} clips")
    qualities = gpu_quality.measure(
        open_checkpoint(ModelStore().resolve(arguments.model)),
        clips,
        arguments.device,
        ["float32", "float16", *compute_types],  # type: ignore[list-item]
        lambda reference, text: wer.score(reference, text, normalise),
    )
    write_stdout(quality_table(arguments.model, qualities))
    return qualities


def measure(shape: str, compute_type: str, device: str, limits: HardwareLimits) -> GpuResult:
    import torch

    from choral.bench.gpu_limits import encoder_share, step_share, window_share
    from choral.bench.gpu_load import LONG_TOKENS, GpuLoadGenerator
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
        encoder = encoder_share(runner, dims, limits)
        row_counts = [n_rows for n_rows in STEP_ROWS if n_rows <= runner.capacity.n_slots]
        steps = tuple(step_share(runner, dims, limits, n_rows, STEP_TOKENS) for n_rows in row_counts)
    started_s = time.perf_counter()
    engine = Engine(runner, settings)
    start_s = runner_s + time.perf_counter() - started_s
    try:
        loads = GpuLoadGenerator(engine, tokenizer).measure(lambda step: message(f"{shape} in {compute_type}: {step}"))
    finally:
        engine.close()
    whole = window_share(runner, dims, limits, loads.windows_per_s, LONG_TOKENS)
    del engine, runner
    gc.collect()
    torch.cuda.empty_cache()
    return GpuResult(shape, compute_type, start_s, loads, encoder, steps, whole)


def measure_transformers(shapes: Sequence[str], device: str) -> dict[str, float]:
    import torch

    from choral.bench.gpu_load import transformers_windows_per_s

    if importlib.util.find_spec("transformers") is None:
        write_stdout("note: transformers is not installed, so there is no comparison with it\n\n")
        return {}
    rates = {}
    for shape in shapes:
        message(f"transformers, {shape}")
        rates[shape] = transformers_windows_per_s(shape, device)
        gc.collect()
        torch.cuda.empty_cache()
    return rates
