"""Who takes part in `choral bench peers`, and with which settings; who is not installed is told in a note.

A library that serves one request at a time gets the better of two worlds: called from many threads at once or one
request after another, with all threads for one worker or one thread for each of many, whichever is faster for it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from choral.bench.systems.spec import PeerConfig

PACKAGES = {  # of each library: what is imported, and what is installed
    "choral_engine": ("choral", "choral"),
    "openai_whisper": ("whisper", "openai-whisper"),
    "faster_whisper_model": ("faster_whisper", "faster-whisper"),
    "transformers_pipeline": ("transformers", "transformers"),
    "whisper_cpp": ("pywhispercpp", "pywhispercpp"),
}
PIPELINE_BATCHES = (4, 8, 16)


@dataclass(frozen=True)
class PeerSetup:
    """What is the same for all."""

    model: Path
    device: str
    threads: int
    compute_types: tuple[str, ...]
    engines: tuple[str, ...]
    n_callers: int
    timestamps: bool
    is_long: bool


def entrants(setup: PeerSetup) -> list[PeerConfig]:
    everyone = [
        *choral_entrants(setup),
        *openai_entrants(setup),
        *faster_whisper_entrants(setup),
        *transformers_entrants(setup),
        *whisper_cpp_entrants(setup),
    ]
    return [spec for spec in everyone if is_installed(spec.library)]


def missing(setup: PeerSetup) -> list[str]:
    """A note for each library that is not here or cannot take these weights."""
    notes = [
        f"{package} is not shown: it is not installed (pip install {package})"
        for library, (_, package) in PACKAGES.items()
        if not is_installed(library)
    ]
    if not is_ggml(setup.model):
        notes.append("whisper.cpp is not shown: it needs a ggml file, and this model is not one")
    return notes


def versions() -> str:
    """Of every library that takes part, in a line."""
    packages = [package for library, (_, package) in PACKAGES.items() if is_installed(library)]
    if importlib.util.find_spec("ctranslate2") is not None:
        packages.append("ctranslate2")
    return ", ".join(f"{package} {version(package)}" for package in packages)


def is_installed(library: str) -> bool:
    return importlib.util.find_spec(PACKAGES[library][0]) is not None


def choral_entrants(setup: PeerSetup) -> Iterator[PeerConfig]:
    """Many callers at once is what it is made for: no other setting is tried."""
    for engine in setup.engines:
        for compute_type in setup.compute_types:
            yield of_setup(setup, "choral_engine", f"choral {engine}", compute_type, engine=engine)


def openai_entrants(setup: PeerSetup) -> Iterator[PeerConfig]:
    """It must not be called from two threads at once."""
    yield alone(of_setup(setup, "openai_whisper", "openai-whisper", full_precision(setup)))


def faster_whisper_entrants(setup: PeerSetup) -> Iterator[PeerConfig]:
    for compute_type in setup.compute_types:
        one = of_setup(setup, "faster_whisper_model", "faster-whisper", compute_type)
        yield from [alone(one)] if setup.is_long else worker_settings(one)
    for compute_type in setup.compute_types:
        one = of_setup(setup, "faster_whisper_model", "faster-whisper batched", compute_type)
        if setup.is_long:
            for batch_size in PIPELINE_BATCHES:
                yield replace(one, batch_size=batch_size, setting=f"batches of {batch_size}", n_callers=1)
        else:
            yield from worker_settings(replace(one, batch_size=PIPELINE_BATCHES[1]))


def transformers_entrants(setup: PeerSetup) -> Iterator[PeerConfig]:
    one = of_setup(setup, "transformers_pipeline", "transformers", full_precision(setup))
    yield alone(one)
    batch_size = PIPELINE_BATCHES[1]
    yield replace(one, batch_size=batch_size, setting=f"batches of {batch_size}", n_callers=1)


def whisper_cpp_entrants(setup: PeerSetup) -> Iterator[PeerConfig]:
    if is_ggml(setup.model) and setup.device == "cpu":
        yield alone(of_setup(setup, "whisper_cpp", "whisper.cpp", "float16"))


def of_setup(setup: PeerSetup, library: str, name: str, compute_type: str, engine: str = "auto") -> PeerConfig:
    return PeerConfig(
        family=f"{name} {compute_type}",
        setting="",
        library=library,
        model=str(setup.model),
        device=setup.device,
        compute_type=compute_type,
        threads=setup.threads,
        engine=engine,
        n_callers=setup.n_callers,
        timestamps=setup.timestamps,
        is_long=setup.is_long,
    )


def alone(spec: PeerConfig) -> PeerConfig:
    return replace(spec, setting="" if spec.is_long else "one after another", n_callers=1)


def worker_settings(spec: PeerConfig) -> Iterator[PeerConfig]:
    yield alone(spec)
    yield replace(spec, setting=f"{spec.n_callers} threads, 1 worker")
    if spec.device == "cpu" and spec.threads > 1:
        n_workers = spec.threads
        yield replace(spec, setting=f"{spec.n_callers} threads, {n_workers} workers", n_workers=n_workers)


def full_precision(setup: PeerSetup) -> str:
    return "float32" if setup.device == "cpu" else "float16"


def is_ggml(model: Path) -> bool:
    files = list(model.glob("*.bin")) if model.is_dir() else [model]
    return any(file.name.startswith("ggml-") for file in files)
