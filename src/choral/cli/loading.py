"""The one place where commands load a model: flags for model and machine, and the call into the Python API."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from choral.cli.arguments import describe
from choral.cli.bars import download_bar
from choral.config import ComputeType, EngineName, EngineSettings

if TYPE_CHECKING:
    from choral.api import Model

SERVICE_CACHE_BYTES = 256 * 2**20  # callers rarely send the same audio twice: what lies longer is only memory


def add_machine_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        metavar="NAME",
        help="a name from `choral models list`, a file or folder, or a Hugging Face repository "
        "(default: one that fits the machine)",
    )
    settings = EngineSettings()
    group.add_argument(
        "--engine",
        default=settings.engine,
        choices=get_args(EngineName),
        metavar="NAME",
        help=describe(f"{', '.join(get_args(EngineName))}; `choral doctor` says which auto is here", settings.engine),
    )
    group.add_argument(
        "--device", default=settings.device, metavar="NAME", help=describe("auto, cpu, cuda or cuda:N", settings.device)
    )
    group.add_argument(
        "--devices", default=settings.devices, metavar="N,N", help="several GPUs, each with an engine of its own: 0,1"
    )
    group.add_argument(
        "--compute-type",
        default=settings.compute_type,
        choices=get_args(ComputeType),
        metavar="NAME",
        help=describe(f"{', '.join(get_args(ComputeType))}; auto is float32 on a CPU, float16 on a GPU", "auto"),
    )
    group.add_argument(
        "--threads", type=int, default=settings.threads, metavar="N", help=describe("CPU threads; 0 is one a core", 0)
    )


def settings_of(arguments: argparse.Namespace) -> EngineSettings:
    """What the flags for the machine say."""
    return EngineSettings(
        engine=arguments.engine,
        device=arguments.device,
        devices=arguments.devices,
        compute_type=arguments.compute_type,
        threads=arguments.threads,
    )


def machine_flags(arguments: argparse.Namespace) -> list[str]:
    """The same flags for another process."""
    names = ("model", "engine", "device", "devices", "compute_type", "threads")
    given = [(f"--{name.replace('_', '-')}", getattr(arguments, name)) for name in names]
    return [f"{flag}={value}" for flag, value in given if value not in (None, "")]


def load_model(arguments: argparse.Namespace, **changes: Any) -> Model:
    """The model that the flags name, fetched first if needed; `changes` are further settings of the engine."""
    import choral

    label = f"loading {arguments.model}" if arguments.model else "loading the model"
    with download_bar(label, is_quiet=getattr(arguments, "quiet", False)) as on_download:
        return choral.load(
            arguments.model, settings=replace(settings_of(arguments), **changes), on_download=on_download
        )
