"""A corpus of real and broken files while actors, tasks, a node and the driver are killed: every row is there once."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import choral
from choral.errors import NotAudio
from cluster.corpus_files import read_rows
from speech_files import join_clips

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]
N_PROMPTS, N_BROKEN, N_NODES = 180, 20, 3
OBJECT_STORE_BYTES = 80 * 2**20
N_DRIVER_KILLS, N_WORKER_KILLS = 3, 3
WORKERS = ("ray::EngineHost", "ray::MapBatches")


@pytest.fixture
def nodes(tiny_en_pt: object) -> Iterator[Any]:
    """Several node processes on this machine; the first has the cluster's state."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES})
    for _ in range(N_NODES - 1):
        cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)
    yield cluster
    cluster.shutdown()


def start_driver(source: Path, target: Path, address: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "choral", "corpus", "transcribe", str(source), str(target), "--model", "tiny.en"]
    with target.with_suffix(".log").open("ab") as log:
        return subprocess.Popen([*command, "--address", address, "--quiet"], stderr=log)


def kill_a_worker(dice: random.Random) -> str | None:
    """Kill -9 of one engine or task, wherever it runs; None: nothing is being transcribed."""
    titles: dict[psutil.Process, str] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            titles[process] = "".join(process.cmdline()).strip()
    workers = [process for process, title in titles.items() if title.startswith(WORKERS)]
    if not any("transcribe_rows" in title for title in titles.values()):
        return None
    process = dice.choice(workers)
    process.kill()
    return titles[process]


def test_whatever_is_killed_every_row_is_there_once(
    nodes: Any, prompts: Callable[[str, int], tuple[Path, ...]], tmp_path: Path
) -> None:
    corpus, output = tmp_path / "corpus", tmp_path / "texts"
    corpus.mkdir()
    sentences = prompts("en", N_PROMPTS)  # there are fewer: the other files are pairs of them
    for number in range(N_PROMPTS):
        n_rounds, index = divmod(number, len(sentences))
        join_clips([sentences[index], *sentences[n_rounds : n_rounds + (n_rounds > 0)]], corpus / f"{number:03d}.wav")
    for number in range(N_BROKEN):
        (corpus / f"broken-{number}.wav").write_bytes(os.urandom(500 * number))
    dice, killed = random.Random(1), list[str]()
    for run in range(N_DRIVER_KILLS):
        driver = start_driver(corpus, output, nodes.address)
        for _ in range(N_WORKER_KILLS):
            while driver.poll() is None and not (title := kill_a_worker(dice)):
                time.sleep(dice.uniform(1, 5))
            killed.append(title or "")
        if run == 1:
            nodes.remove_node(nodes.list_all_nodes()[-1], allow_graceful=False)
        time.sleep(dice.uniform(2, 12))
        driver.kill()
        driver.wait()
    last = start_driver(corpus, output, nodes.address)
    assert last.wait() == NotAudio.exit_code, output.with_suffix(".log").read_text()[-2000:]
    print(f"killed {len(killed)} workers: {sorted(set(killed))}")
    rows = read_rows(output)
    assert len(rows) == N_PROMPTS + N_BROKEN
    assert sum(row["error"] is not None for row in rows.values()) == N_BROKEN
    with choral.load("tiny.en", optimize_for="throughput") as model:
        paths = [path for path in sorted(corpus.iterdir()) if not path.name.startswith("broken")]
        for path, outcome in model.transcribe_many(paths):
            assert rows[str(path)]["text"] == outcome.text
