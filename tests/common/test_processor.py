"""The number of cores and threads follows what the process may use."""

from __future__ import annotations

import os
import sys

import pytest

from choral.common.processor import default_threads, n_physical_cores, n_usable_cores


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has affinities")
def test_cores_outside_the_affinity_do_not_count() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert (n_usable_cores(), n_physical_cores()) == (1, 1)
    finally:
        os.sched_setaffinity(0, allowed)
    assert n_usable_cores() == len(allowed) >= n_physical_cores()


@pytest.mark.parametrize(("value", "expected"), [("3", 3), ("5,1", 5), ("", None), ("0", None), ("many", None)])
def test_threads_follow_the_environment(monkeypatch: pytest.MonkeyPatch, value: str, expected: int | None) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert default_threads() == (expected or n_physical_cores())
