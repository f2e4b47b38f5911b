"""The engines of a run: one actor per GPU or, in a cluster without GPUs, one per node; checked before they are used."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import choral
from choral.config import MAX_QUEUE_LIMIT, EngineSettings
from choral.errors import ClusterError
from choral.ray.engine_host import EngineHost, HostReport
from choral.serving.engine_protocol import EngineDescription
from choral.serving.error_messages import error_from_name

MAX_CALLS = 4096  # windows that an actor has at once; Ray keeps more in its own queue
MAX_STARTS = 5
START_TIMEOUT_S = 900.0  # a large model may have to be downloaded on every node


@dataclass(frozen=True)
class EnginePool:
    """Can be sent to any node. The actors end when nobody has a handle of them any more."""

    id: str
    hosts: tuple[Any, ...]  # handles of `EngineHost`
    model: str
    engine: EngineDescription


def start_engines(ray: Any, model: str | None, settings: EngineSettings, n_engines: int | None) -> EnginePool:
    """Start the actors and wait until all have loaded the model; the error of one that cannot is raised here."""
    n_gpus = int(ray.cluster_resources().get("GPU", 0))
    uses_gpu = n_gpus > 0 and settings.device != "cpu"
    n_wanted = n_engines or (n_gpus if uses_gpu else max(1, _n_cpu_nodes(ray)))
    if uses_gpu and n_wanted > n_gpus:
        raise ClusterError(f"{n_wanted} engines were requested, but the cluster has {n_gpus} GPUs: start more nodes")
    # Callers are bounded by the tasks of Ray Data: an engine that refused them would only make errors of waiting.
    # An engine on CPUs reserves none: tasks that prepare its windows could not start on a small node.
    actor = ray.remote(EngineHost).options(
        num_gpus=1 if uses_gpu else 0,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=MAX_CALLS,
        scheduling_strategy="SPREAD",
    )
    chosen = replace(settings, queue_limit=MAX_QUEUE_LIMIT, optimize_for="throughput")
    hosts = [actor.remote(model, chosen) for _ in range(n_wanted)]
    reports = _reports(ray, hosts)
    for report in reports:
        require_usable(report)
    first = reports[0]
    assert first.engine is not None
    _require_same(reports)
    return EnginePool(uuid.uuid4().hex, tuple(hosts), first.model, first.engine)


def _n_cpu_nodes(ray: Any) -> int:
    return sum(1 for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0)


def _reports(ray: Any, hosts: Sequence[Any], n_tries: int = MAX_STARTS) -> list[HostReport]:
    try:
        reports: list[HostReport] = ray.get([host.report.remote() for host in hosts], timeout=START_TIMEOUT_S)
    except ray.exceptions.ActorUnavailableError as error:  # it died while it loaded the model, and is restarted
        if n_tries == 1:
            raise ClusterError(f"an engine died {MAX_STARTS} times while it started: see its log ({error})") from error
        return _reports(ray, hosts, n_tries - 1)
    except ray.exceptions.GetTimeoutError as error:
        raise ClusterError(
            f"{len(hosts)} engines did not start within {START_TIMEOUT_S:g} s: check with `ray status` that the "
            "cluster has free GPUs"
        ) from error
    except ray.exceptions.RayError as error:
        text = str(error)
        if "No module named" in text or "ModuleNotFoundError" in text:
            raise ClusterError(
                "a node of the cluster has no Choral: install the same version on every node, "
                f"`pip install choral[ray]=={choral.__version__}` ({text.strip().splitlines()[-1]})"
            ) from error
        raise ClusterError(f"an engine did not start: {text.strip().splitlines()[-1]}") from error
    return reports


def require_usable(report: HostReport) -> None:
    """Raise what keeps this engine from being used, with the name of its node."""
    if report.version != choral.__version__:
        raise ClusterError(
            f"node {report.node} has Choral {report.version}, this program has {choral.__version__}: "
            "install the same version on every node"
        )
    if report.error is not None:
        raise error_from_name(report.error.kind, f"node {report.node}: {report.error.text}")


def _require_same(reports: Sequence[HostReport]) -> None:
    different = next((report for report in reports if _model_and_type(report) != _model_and_type(reports[0])), None)
    if different is not None:
        first, other = _model_and_type(reports[0]), _model_and_type(different)
        raise ClusterError(
            f"node {reports[0].node} would use {' in '.join(first)}, node {different.node} {' in '.join(other)}, and "
            "their texts would differ: give --model, and --compute-type if need be"
        )


def _model_and_type(report: HostReport) -> tuple[str, str]:
    assert report.engine is not None
    return report.model, report.engine.compute_type
