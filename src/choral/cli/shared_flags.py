"""Flag groups that several commands share, and what they configure: the model, the queue client, the log."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from choral.cli.arguments import add_flags, describe
from choral.cli.progress import download_bar
from choral.config import EngineSettings

if TYPE_CHECKING:
    from choral.api import Model
    from choral.jobs.sync_client import Client

WEBHOOK_SECRET = "CHORAL_WEBHOOK_SECRET"
SERVICE_SETTINGS: dict[str, Any] = {
    "cache_bytes": 256 * 2**20,  # clients of a service rarely send the same audio twice
    "optimize_for": "throughput",
}
ENGINE_FLAGS = ("engine", "device", "devices", "compute_type", "threads", "draft", "batch_invariant")
MAX_PROCESSES = 256


def add_machine_flags(group: argparse._ArgumentGroup, *, has_several_models: bool = False) -> None:
    several = "; repeat it to serve several, the first of which is the default one" if has_several_models else ""
    group.add_argument(
        "--model",
        metavar="NAME",
        action="append" if has_several_models else "store",
        help="a name from `choral models list`, a file or folder, or a Hugging Face repository"
        f"{several} (default: one that fits the machine)",
    )
    add_flags(group, EngineSettings, ENGINE_FLAGS)


def add_processes_flag(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--processes",
        type=_n_processes,
        metavar="N",
        help="processes that decode audio and assemble text beside the engine; 0: threads of this process "
        "(default: as many as help)",
    )


def _n_processes(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_PROCESSES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {MAX_PROCESSES}")
    return int(text)


def engine_settings(arguments: argparse.Namespace) -> EngineSettings:
    return EngineSettings(**{name: getattr(arguments, name) for name in ENGINE_FLAGS if hasattr(arguments, name)})


def machine_arguments(arguments: argparse.Namespace) -> list[str]:
    """The machine flags that were given, as command-line arguments for a child process."""
    values = {name: getattr(arguments, name, None) for name in ("model", *ENGINE_FLAGS)}
    flags = {name: name.replace("_", "-") for name in values}
    switches = [f"--{'' if value else 'no-'}{flags[name]}" for name, value in values.items() if isinstance(value, bool)]
    given = {name: value for name, value in values.items() if value is not None and not isinstance(value, bool)}
    return [*(f"--{flags[name]}={value}" for name, value in given.items()), *switches]


def load_model(arguments: argparse.Namespace, **overrides: Any) -> Model:
    """Load the model that the flags name, downloading it if needed; `overrides` are further engine settings."""
    import choral

    label = f"loading {arguments.model}" if arguments.model else "loading the model"
    settings = replace(engine_settings(arguments), **overrides)
    with download_bar(label, is_quiet=getattr(arguments, "quiet", False)) as on_download:
        return choral.load(arguments.model, settings=settings, on_download=on_download)


def add_redis_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--redis",
        metavar="URL",
        help="redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss:// or unix:// (default: CHORAL_REDIS, or "
        "redis://localhost:6379); set a URL with a password in CHORAL_REDIS: other users can see command lines",
    )
    group.add_argument(
        "--namespace", default="choral", metavar="NAME", help="prefix of all keys in Redis (default: choral)"
    )


def open_client(arguments: argparse.Namespace) -> Client:
    from choral.jobs import Client, ClientSettings

    return Client(arguments.redis, ClientSettings(namespace=arguments.namespace))


def add_log_flags(group: argparse._ArgumentGroup) -> None:
    from choral.common.logs import LogFormat

    formats = get_args(LogFormat)
    group.add_argument(
        "--log-format",
        choices=formats,
        default="text",
        metavar="|".join(formats),
        help=describe("format of log lines", "text"),
    )
    group.add_argument("--quiet", action="store_true", help="log only warnings and errors")
