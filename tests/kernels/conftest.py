"""Kernels run in Triton's interpreter here, and compiled where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from choral.kernels import launch


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launch, "is_interpreted", True)
    torch.manual_seed(11)
    with torch.inference_mode(), np.errstate(divide="ignore", invalid="ignore"):  # a GPU does not warn either
        yield


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
