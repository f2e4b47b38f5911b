"""Which libraries take part in `choral bench peers`, and with which settings.

A library that serves one request at a time gets the best of several settings: called from many threads or one request
after another, with all threads for one worker or one thread for each of several.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from choral.bench.peers import LIBRARIES, PeerConfig, is_installed, not_installed_note

PIPELINE_BATCHES = (4, 8, 16)


@dataclass(frozen=True)
class PeerSetup:
    """The settings that all peers share."""

    model: Path
    device: str
    threads: int
    compute_types: tuple[str, ...]
    engines: tuple[str, ...]
    n_callers: int
    timestamps: bool
    is_long: bool

    def config(self, library: str, name: str, compute_type: str, engine: str = "auto") -> PeerConfig:
        return PeerConfig(
            family=f"{name} {compute_type}",
            library=library,
            model=str(self.model),
            device=self.device,
            compute_type=compute_type,
            threads=self.threads,
            engine=engine,
            n_callers=self.n_callers,
            timestamps=self.timestamps,
            is_long=self.is_long,
        )

    @property
    def full_precision(self) -> str:
        return "float32" if self.device == "cpu" else "float16"


def all_configs(setup: PeerSetup) -> list[PeerConfig]:
    """The settings of all libraries that are installed."""
    configs = [
        *choral_configs(setup),
        sequential(setup.config("openai-whisper", "openai-whisper", setup.full_precision)),
    ]
    configs += [*faster_whisper_configs(setup), *transformers_configs(setup)]
    if is_ggml(setup.model) and setup.device == "cpu":
        configs.append(sequential(setup.config("pywhispercpp", "whisper.cpp", "float16")))
    return [config for config in configs if is_installed(config.library)]


def choral_configs(setup: PeerSetup) -> Iterator[PeerConfig]:
    """Always with all callers at once. One long file also with the defaults of `choral transcribe`."""
    if setup.is_long:
        config = setup.config("choral", "choral defaults", "auto")
        yield replace(config, family="choral defaults", setting="sequential", is_sequential=True)
    for engine in setup.engines:
        for compute_type in setup.compute_types:
            yield setup.config("choral", f"choral {engine}", compute_type, engine)


def faster_whisper_configs(setup: PeerSetup) -> Iterator[PeerConfig]:
    for compute_type in setup.compute_types:
        config = setup.config("faster-whisper", "faster-whisper", compute_type)
        yield from [sequential(config)] if setup.is_long else worker_settings(config)
    for compute_type in setup.compute_types:
        config = setup.config("faster-whisper", "faster-whisper batched", compute_type)
        if setup.is_long:
            yield from (batched(config, batch_size) for batch_size in PIPELINE_BATCHES)
        else:
            yield from worker_settings(replace(config, batch_size=PIPELINE_BATCHES[1]))


def transformers_configs(setup: PeerSetup) -> Iterator[PeerConfig]:
    config = setup.config("transformers", "transformers", setup.full_precision)
    yield sequential(config)
    yield batched(config, PIPELINE_BATCHES[1])


def sequential(config: PeerConfig) -> PeerConfig:
    return replace(config, setting="" if config.is_long else "one after another", n_callers=1)


def batched(config: PeerConfig, batch_size: int) -> PeerConfig:
    return replace(config, batch_size=batch_size, setting=f"batches of {batch_size}", n_callers=1)


def worker_settings(config: PeerConfig) -> Iterator[PeerConfig]:
    yield sequential(config)
    yield replace(config, setting=f"{config.n_callers} threads, 1 worker")
    if config.device == "cpu" and config.threads > 1:
        n_workers = config.threads
        yield replace(config, setting=f"{config.n_callers} threads, {n_workers} workers", n_workers=n_workers)


def missing_notes(setup: PeerSetup) -> list[str]:
    """A note for each library that is not installed or cannot read these weights."""
    notes = [not_installed_note(library) for library in LIBRARIES if not is_installed(library)]
    if not is_ggml(setup.model):
        notes.append("whisper.cpp is not shown: it needs a ggml file, and this model is not one")
    return notes


def versions() -> str:
    packages = [library for library in LIBRARIES if is_installed(library)]
    if importlib.util.find_spec("ctranslate2") is not None:
        packages.append("ctranslate2")
    return ", ".join(f"{package} {version(package)}" for package in packages)


def is_ggml(model: Path) -> bool:
    files = list(model.glob("*.bin")) if model.is_dir() else [model]
    return any(file.name.startswith("ggml-") for file in files)
