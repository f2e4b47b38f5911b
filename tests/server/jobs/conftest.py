"""A server for the tests of jobs and the page, and the expected transcript from the same model in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import choral
from serve_process import ServeProcess, running
from support.http_stub import HttpStub

SECRET = "whsec_bG9jYWwgam9icyBhcmUgc2lnbmVkIHdpdGggdGhpcw=="


@pytest.fixture(scope="session")
def http_stub() -> Iterator[HttpStub]:
    with HttpStub(SECRET) as end:
        yield end


@pytest.fixture(scope="session")
def webhook_secret() -> str:
    return SECRET


@pytest.fixture(scope="session")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="session")
def job_server(tiny_en_pt: Path, job_folder: Path) -> Iterator[ServeProcess]:
    with running(
        "--model", tiny_en_pt, "--data", job_folder, "--allowed-hosts", "127.0.0.1", "--processes", 1, "--threads", 1,
        env={"CHORAL_WEBHOOK_SECRET": SECRET},
    ) as server:  # fmt: skip
        yield server


@pytest.fixture
def http(job_server: ServeProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=job_server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def jfk_transcript(tiny_en_pt: Path, jfk: Path) -> choral.Transcript:
    """What `choral transcribe` gives, with words."""
    with choral.load(tiny_en_pt, device="cpu", compute_type="float32", threads=1) as model:
        return model.transcribe(jfk, word_timestamps=True)
