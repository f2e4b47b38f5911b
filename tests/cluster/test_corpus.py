"""Corpora on a real Ray cluster of this machine, with real weights: the same texts as without it, each row once."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

import choral
import choral.ray
from choral.config import EngineSettings
from choral.errors import ClusterError, MissingDependency, ModelNotFound, UsageError
from choral.options import TranscribeOptions
from choral.ray.cluster import connect
from choral.ray.corpus_run import CorpusProgress, CorpusRequest, transcribe_corpus
from choral.ray.engine_host import HostReport
from choral.ray.engine_pool import require_usable, start_engines
from cluster.corpus_files import make_corpus, read_rows
from speech_files import join_clips

# Ray sets its own deprecated options and leaves sockets open.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


def run_corpus(source: Path, target: Path, **changes: Any) -> CorpusProgress:
    request = CorpusRequest(
        source=str(source), target=str(target), model="tiny.en", options=TranscribeOptions(word_timestamps=True)
    )
    *_, last = transcribe_corpus(CorpusRequest(**{**request.__dict__, **changes}))
    return last


def kill_engines(stop: threading.Event, n_kills: int, killed: list[int]) -> None:
    """Kill engines while a task uses them, one after another."""
    while len(killed) < n_kills and not stop.wait(0.5):
        with contextlib.suppress(psutil.Error):  # one that ended by itself
            children = {each: "".join(each.cmdline()) for each in psutil.Process().children(recursive=True)}
            engines = [each for each, title in children.items() if "ray::EngineHost" in title]
            if engines and any("transcribe_rows" in title for title in children.values()):
                engines[0].kill()
                killed.append(engines[0].pid)


def test_a_corpus_has_the_texts_of_transcribe_and_is_resumed(
    ray_cluster: Any, speech_clips: list[Path], tmp_path: Path
) -> None:
    folder, output = tmp_path / "corpus", tmp_path / "texts"
    expected = make_corpus(folder, speech_clips)
    done = run_corpus(folder, output)
    rows = read_rows(output)
    assert (done.n_rows, done.n_errors, done.n_skipped) == (8, 4, 0)
    with choral.load("tiny.en", optimize_for="throughput") as model:
        for source, clip in expected.items():
            transcript = model.transcribe(clip, word_timestamps=True)
            assert rows[source]["text"] == transcript.text
            assert [word["word"] for word in rows[source]["words"]] == [word.text.strip() for word in transcript.words]
            assert [each["text"] for each in rows[source]["segments"]] == [each.text for each in transcript.segments]
    kinds = {Path(source).name: row["error_kind"] for source, row in rows.items() if row["error"]}
    assert kinds == {
        "broken.wav": "NotAudio",
        "empty.mp3": "AudioEmpty",
        "broken.tar": "NotAudio",
        "other.parquet": "NotAudio",
    }

    replaced, added = folder / speech_clips[0].name, folder / "new.wav"
    shutil.copy(speech_clips[4], replaced)
    shutil.copy(speech_clips[4], added)
    os.utime(folder / speech_clips[1].name)  # another time, the same content
    again = run_corpus(folder, output)
    assert (again.n_rows, again.n_skipped) == (2, 8)
    later = read_rows(output)
    assert later[str(replaced)]["text"] == later[str(added)]["text"] != rows[str(replaced)]["text"]
    assert later.keys() == rows.keys() | {str(added)}
    with pytest.raises(UsageError, match="language"):
        run_corpus(folder, output, options=TranscribeOptions(language="en", word_timestamps=True))


@pytest.mark.slow
def test_a_long_file_is_shared_and_survives_killed_engines(
    ray_cluster: Any, speech_clips: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    join_clips(speech_clips * 6, folder / "long.wav")
    stop, killed = threading.Event(), list[int]()
    killer = threading.Thread(target=kill_engines, args=(stop, 2, killed))
    killer.start()
    try:
        done = run_corpus(folder, tmp_path / "texts", engines=2)
    finally:
        stop.set()
        killer.join()
    assert killed
    assert (done.n_rows, done.n_errors) == (1, 0)
    (row,) = read_rows(tmp_path / "texts").values()
    with choral.load("tiny.en", optimize_for="throughput") as model:
        assert row["text"] == model.transcribe(folder / "long.wav", word_timestamps=True).text


@pytest.mark.slow
def test_a_dataset_keeps_its_columns(ray_cluster: Any, speech_clips: list[Path]) -> None:
    rows = [{"bytes": speech_clips[0].read_bytes(), "id": 7}, {"bytes": b"nothing", "id": 8}]
    dataset = choral.ray.transcribe(ray_cluster.data.from_items(rows), model="tiny.en", language="en")
    found = {row["id"]: row for row in dataset.take_all()}
    with choral.load("tiny.en", optimize_for="throughput") as model:
        assert found[7]["text"] == model.transcribe(speech_clips[0], language="en").text
    assert found[8]["error_kind"] == "NotAudio"
    assert "bytes" not in dataset.columns()
    with pytest.raises(UsageError, match="path_column"):
        choral.ray.transcribe(ray_cluster.data.from_items([{"id": 1}]))


class TestErrors:
    def test_a_model_that_a_node_does_not_have(self, ray_cluster: Any) -> None:
        with pytest.raises(ModelNotFound, match="node "):
            start_engines(ray_cluster, "no-such-model", EngineSettings(), 1)

    def test_more_engines_than_gpus(self, ray_cluster: Any) -> None:
        class OneGpu:
            def cluster_resources(self) -> dict[str, float]:
                return {"GPU": 1.0}

        with pytest.raises(ClusterError, match="has 1 GPUs"):
            start_engines(OneGpu(), None, EngineSettings(), 2)

    def test_another_version_of_choral(self) -> None:
        with pytest.raises(ClusterError, match=r"node b has Choral 0\.0\.1"):
            require_usable(HostReport("b", "0.0.1", "tiny.en", None))

    def test_options_that_the_model_does_not_have(
        self, ray_cluster: Any, speech_clips: list[Path], tmp_path: Path
    ) -> None:
        with pytest.raises(UsageError, match="English"):
            run_corpus(speech_clips[0].parent, tmp_path / "texts", options=TranscribeOptions(language="de"))

    def test_no_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(MissingDependency, match=r"choral\[ray\]"):
            connect()

    def test_nobody_listens(self, tmp_path: Path) -> None:
        """In a process of its own: this one is connected, and Ray would end it."""
        command = [sys.executable, "-m", "choral", "corpus", "transcribe", str(tmp_path), str(tmp_path / "out")]
        done = subprocess.run(
            [*command, "--address", "127.0.0.1:9"], capture_output=True, text=True, check=False, env=os.environ
        )
        assert done.returncode == ClusterError.exit_code
        assert done.stderr.startswith("choral: no Ray cluster at 127.0.0.1:9: ")

    @pytest.mark.parametrize(
        ("fault", "text"),
        [
            (ConnectionError("Could not find any running Ray instance."), "ray start --head"),
            (
                RuntimeError("Version mismatch: the cluster has Ray 2.1, this process 2.2"),
                "install the cluster's versions",
            ),
            (ValueError("a malformed address"), "not an address"),
            (RuntimeError("too few inodes"), "could not be started"),
        ],
    )
    def test_a_cluster_that_cannot_be_joined(
        self,
        fault: Exception,
        text: str,
        ray_cluster: Any,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def init(**_: Any) -> None:
            raise fault

        monkeypatch.setattr(ray_cluster, "is_initialized", lambda: False)
        monkeypatch.setattr(ray_cluster, "init", init)
        with pytest.raises(ClusterError, match=text):
            connect("auto")
        assert caplog.handler.level == logging.NOTSET  # one of the program's handlers, which is not Ray's
