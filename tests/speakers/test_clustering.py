"""Clustering of embeddings with known speakers: their number, hints, and long recordings."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from choral.speakers import clustering
from choral.speakers.clustering import Clusters, cluster, merge_tree


def voices(n_speakers: int, n_each: int, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around orthogonal centres, speakers in turn; and the speaker of each."""
    generator = np.random.default_rng(n_speakers)
    truth = np.tile(np.arange(n_speakers), n_each)
    vectors = np.eye(n_speakers, 64)[truth] + generator.normal(0, noise / 8, (truth.size, 64))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), truth


def clustered(embeddings: np.ndarray, n_speakers: tuple[int, int | None] = (1, None)) -> Clusters:
    n = len(embeddings)
    return cluster(embeddings, np.full(n, 3.0, np.float32), np.arange(n), n_speakers)


def is_same_partition(one: np.ndarray, other: np.ndarray) -> bool:
    return (
        len(set(zip(one.tolist(), other.tolist(), strict=True))) == len(set(one.tolist())) == len(set(other.tolist()))
    )


@pytest.mark.parametrize("n_speakers", [1, 2, 6, 10])
def test_the_number_of_speakers_is_found(n_speakers: int) -> None:
    embeddings, truth = voices(n_speakers, 12)
    clusters = clustered(embeddings)
    assert len(clusters.centroids) == n_speakers
    assert is_same_partition(clusters.labels, truth)
    np.testing.assert_allclose(np.linalg.norm(clusters.centroids, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize(("hint", "expected"), [((5, 5), 5), ((1, 1), 1), ((2, 3), 3), ((6, 9), 6), ((1, 9), 4)])
def test_a_hint_bounds_the_number(hint: tuple[int, int], expected: int) -> None:
    clusters = clustered(voices(4, 20)[0], hint)
    assert len(clusters.centroids) == expected
    assert set(clusters.labels.tolist()) == set(range(expected))


def test_few_windows_of_noise_are_no_speaker() -> None:
    embeddings, truth = voices(2, 40)
    stray = np.eye(3, 64)[[2]].astype(np.float32)
    clusters = clustered(np.concatenate([embeddings, stray]))
    assert len(clusters.centroids) == 2
    assert is_same_partition(clusters.labels[:-1], truth)


def test_one_embedding_is_one_speaker_and_hints_are_met_as_far_as_possible() -> None:
    assert len(clustered(voices(1, 1)[0]).centroids) == 1
    assert len(clustered(voices(2, 1)[0], (5, 5)).centroids) == 2


def test_short_speech_joins_the_clusters_of_longer_speech() -> None:
    embeddings, truth = voices(2, 10)
    clean_s = np.full(20, 3.0, np.float32)
    clean_s[:6] = 0.2
    clusters = cluster(embeddings, clean_s, np.arange(20))
    assert is_same_partition(clusters.labels, truth)
    for seconds in (0.2, 0.0):
        only_short = cluster(embeddings, np.full(20, seconds, np.float32), np.arange(20))
        assert is_same_partition(only_short.labels, truth)


def test_short_pieces_follow_their_local_speaker() -> None:
    """A piece between two voices goes where the other pieces of its local speaker go; a long one does not."""
    embeddings, truth = voices(2, 20)
    tracks = np.concatenate([np.arange(38), [38, 38]])  # the last two are of one local speaker
    between = embeddings[truth == 0][0] + 1.5 * embeddings[truth == 1][0]
    embeddings[-2:] = embeddings[0], between / np.linalg.norm(between)
    clean_s = np.full(40, 3.0, np.float32)
    for last_s, expected in ((0.1, truth[0]), (3.0, truth[1])):
        clean_s[-1] = last_s
        clusters = cluster(embeddings, clean_s, tracks)
        labels = {int(truth[i]): int(clusters.labels[i]) for i in range(2)}
        assert clusters.labels[-1] == labels[int(expected)]
        assert {int(clusters.labels[-1]), int(clusters.seconds[-1])} == {0, 1}
        assert clusters.margins.min() >= 0


def test_long_recordings_are_clustered_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, truth = voices(5, 60)
    monkeypatch.setattr(clustering, "MAX_CLUSTERED", 50)
    clusters = clustered(embeddings)
    assert len(clusters.centroids) == 5
    assert is_same_partition(clusters.labels, truth)


def test_blocks_end_where_nothing_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "MAX_CLUSTERED", 8)
    assert len(clustered(np.eye(40, 64, dtype=np.float32), (3, 3)).centroids) == 3


def test_merges_are_those_of_the_definition() -> None:
    """Average linkage: the pair of clusters with the smallest mean distance between their members."""
    embeddings, _ = voices(3, 5, noise=1.5)
    distances = 1 - embeddings @ embeddings.T
    members = {index: [index] for index in range(len(embeddings))}
    for merge in merge_tree(embeddings, np.ones(len(embeddings), np.float32)):
        means = {(a, b): distances[np.ix_(members[a], members[b])].mean() for a in members for b in members if a < b}
        best = min(means, key=lambda pair: means[pair])
        assert (merge.kept, merge.removed) == best
        assert merge.distance == pytest.approx(means[best], abs=1e-5)
        members[merge.kept] += members.pop(merge.removed)
    assert len(members) == 1


def test_long_recordings_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embeddings of ten hours take 85 MB in half precision; clustering needs less than that beside them."""
    monkeypatch.setattr(clustering, "MAX_CLUSTERED", 50)
    generator = np.random.default_rng(0)
    truth = np.tile(np.arange(4), 2_000)
    vectors = 16 * np.eye(4, 256)[truth] + generator.normal(0, 0.5, (truth.size, 256))
    embeddings = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    clean_s, tracks = np.full(truth.size, 3.0, np.float32), np.arange(truth.size)
    del vectors
    tracemalloc.start()
    clusters = cluster(embeddings, clean_s, tracks)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert is_same_partition(clusters.labels, truth)
    assert peak_bytes < embeddings.nbytes
