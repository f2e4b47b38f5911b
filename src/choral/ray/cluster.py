"""The connection to a Ray cluster, with typed errors for what keeps it from being used."""

from __future__ import annotations

import logging
import socket
from typing import Any

from choral.errors import ClusterError, MissingDependency

LOCAL = "local"
CONNECT_TIMEOUT_S = 10.0


def require_ray() -> Any:
    """The package `ray`, with Ray Data."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingDependency(
            f"Ray is not installed ({error}): install choral with its extra, `pip install choral[ray]`"
        ) from error
    return ray


def connect(address: str | None = None) -> Any:
    """The package `ray`, connected to the cluster at `address`.

    None starts a cluster on this machine, `auto` finds the one that runs here. In a program that is already connected,
    nothing happens.
    """
    ray = require_ray()
    if ray.is_initialized():
        return ray
    _log_errors_only()
    _require_listener(address)
    local = {"include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address or LOCAL, log_to_driver=False, logging_level=logging.ERROR, **local)
    except ConnectionError as error:
        raise ClusterError(
            f"no Ray cluster at {address}: start one with `ray start --head`, give the address of its head node, "
            f"or leave out the address to use this machine alone ({_first_line(error)})"
        ) from error
    except RuntimeError as error:
        if "mismatch" in str(error).lower():
            raise ClusterError(
                f"this Ray or Python does not fit the cluster at {address}: install the cluster's versions here "
                f"({' '.join(str(error).split())})"
            ) from error
        raise ClusterError(f"Ray could not be started at {address or 'this machine'}: {_first_line(error)}") from error
    except ValueError as error:
        raise ClusterError(f"{address!r} is not an address of a Ray cluster: {_first_line(error)}") from error
    return ray


def _require_listener(address: str | None) -> None:
    """Ray ends the whole process when nobody listens at an address."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ClusterError(f"no Ray cluster at {address}: {error}; check the address and that the head runs") from error


def _log_errors_only() -> None:
    """Ray Data reports every step on standard error; its own files have all of it. Other handlers stay as they are."""
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler) and type(handler).__module__.startswith("ray."):
            handler.setLevel(logging.ERROR)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
