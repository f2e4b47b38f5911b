"""A small Ray cluster for the tests of one process."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

OBJECT_STORE_BYTES = 100 * 2**20  # the least that Ray takes is 75 MiB


@pytest.fixture(scope="session")
def ray_cluster(tiny_en_pt: object) -> Iterator[Any]:
    """Ray with two CPUs on this machine; the model is there before its workers look for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own imports
        import ray
        import ray.data

    ray.init(
        address="local",  # not a cluster that happens to run here
        num_cpus=2,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()
