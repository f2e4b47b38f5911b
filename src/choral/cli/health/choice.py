"""The engine, device and precision that the settings come to on this machine, and the model that goes with them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace

from choral.cli.health.findings import Finding, State
from choral.cli.health.packages import Loaded
from choral.config import EngineSettings
from choral.engine.factory import pick_engine
from choral.errors import MissingDependency, UsageError
from choral.model.store import default_model


@dataclass(frozen=True)
class Choice:
    finding: Finding
    default_model: str


def choose(settings: EngineSettings, engines: Mapping[str, Loaded]) -> Choice:
    try:
        name = pick_engine(settings)
    except MissingDependency as error:
        return Choice(Finding("engine", str(error), State.PROBLEM), default_model(cuda=False))
    if engines[name].module is None:
        return Choice(_broken(name, engines), default_model(cuda=False))
    try:
        device, compute_type = torch_choice(settings) if name == "torch" else ctranslate2_choice(settings)
    except UsageError as error:
        return Choice(Finding("engine", str(error), State.PROBLEM), default_model(cuda=False))
    is_cuda = name == "torch" and "cuda" in device
    has_triton = importlib.util.find_spec("triton") is not None
    finding = Finding("engine", f"{name} on {device} in {compute_type}")
    return Choice(with_kernels(finding, has_triton=has_triton) if is_cuda else finding, default_model(cuda=is_cuda))


def with_kernels(finding: Finding, *, has_triton: bool) -> Finding:
    """A GPU is fast with Choral's own kernels, which Triton compiles."""
    if has_triton:
        return replace(finding, text=f"{finding.text}, with kernels of its own")
    return replace(finding, text=f"{finding.text}, and slow without Triton", state=State.NOTE, fix="pip install triton")


def torch_choice(settings: EngineSettings) -> tuple[str, str]:
    from choral.engine.torch_device import pick_compute_type, pick_device

    devices = [pick_device(name) for name in settings.device_names or [settings.device]]
    return ", ".join(map(str, devices)), pick_compute_type(settings.compute_type, devices[0])


def ctranslate2_choice(settings: EngineSettings) -> tuple[str, str]:
    from choral.engine.ct2_runner import pick_compute_type, pick_device

    kind, index = pick_device(settings.device)
    return kind if kind == "cpu" else f"{kind}:{index}", pick_compute_type(settings.compute_type, kind)


def _broken(name: str, engines: Mapping[str, Loaded]) -> Finding:
    mend = f"reinstall it: pip install --force-reinstall {name}"
    others = [other for other, loaded in engines.items() if loaded.module is not None]
    if others:
        mend += f"; until then, use --engine {others[0]}"
    return Finding("engine", f"{name}, which cannot be loaded", State.PROBLEM, mend)
