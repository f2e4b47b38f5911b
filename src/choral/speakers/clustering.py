"""Clustering: which pieces of speech in all windows are of one person, and how many persons there are.

Agglomerative, by the average cosine distance between members. Only embeddings of enough speech take part. Then all go
to the nearest cluster found, short pieces with the other pieces of their local speaker. Long recordings are clustered
in blocks first, so that memory and time stay bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choral.speakers.networks import Float32

Int = npt.NDArray[np.int64]
Embeddings = npt.NDArray[np.float16] | Float32  # [n, 256], of unit length

MAX_DISTANCE = 0.65  # average cosine distance within one voice
BLOCK_DISTANCE = 0.6 * MAX_DISTANCE  # within a block of a long recording, where less is known of each voice
MAX_CLUSTERED = 1_500
MIN_TRAINED_S = 0.7  # of clean speech that an embedding needs to take part
MIN_MEMBERS = 12  # pieces that a speaker has, 3 s of speech in the windows over it; in short recordings:
MIN_MEMBER_SHARE = 0.05
TRACK_S = 0.5  # a piece with this much clean speech tells as much as the whole local speaker


@dataclass(frozen=True)
class Clusters:
    centroids: Float32  # [speakers, 256], of unit length
    labels: Int  # [embeddings]: the most similar
    seconds: Int  # [embeddings]: the second; the most similar again if there is only one
    margins: Float32  # [embeddings]: by how much the first is more similar than the second


def cluster(
    embeddings: Embeddings, clean_s: Float32, tracks: Int, n_speakers: tuple[int, int | None] = (1, None)
) -> Clusters:
    """`tracks`: a number for the local speaker that each embedding is of; those of one are together and ascend."""
    trained = np.flatnonzero(clean_s >= min(MIN_TRAINED_S, float(clean_s.max())))
    weights = np.maximum(clean_s[trained], np.float32(1e-3))  # where all speech is overlapped, none is clean
    labels = _cluster_trained(embeddings, trained, weights, n_speakers)
    centroids = _centroids(embeddings, trained, weights, labels)
    scores = _scores(_similarities(embeddings, centroids), clean_s, tracks)
    order = np.argsort(-scores, axis=1, kind="stable")
    labels, seconds = order[:, 0], order[:, min(1, len(centroids) - 1)]
    rows = np.arange(len(scores))
    return Clusters(centroids, labels, seconds, scores[rows, labels] - scores[rows, seconds])


def _cluster_trained(embeddings: Embeddings, rows: Int, weights: Float32, n_speakers: tuple[int, int | None]) -> Int:
    """A label for each of these rows; -1 in clusters too small to be speakers."""
    members, groups = _pre_cluster(embeddings, rows, weights)
    sizes = np.bincount(groups).astype(np.int64)
    merges = merge_tree(members, np.bincount(groups, weights).astype(np.float32))
    min_members = min(MIN_MEMBERS, max(1, round(MIN_MEMBER_SHARE * len(rows))))
    merged = _labels(len(members), merges[: _n_merges(sizes, merges, min_members, n_speakers)])
    counts = np.bincount(merged, sizes)
    kept = np.flatnonzero(counts >= min_members)
    if len(kept) < n_speakers[0]:
        kept = np.argsort(-counts, kind="stable")[: n_speakers[0]]
    numbers = np.full(len(counts), -1)
    numbers[kept] = np.arange(len(kept))
    return numbers[merged][groups]


def _pre_cluster(embeddings: Embeddings, rows: Int, weights: Float32) -> tuple[Float32, Int]:
    """Few enough embeddings for the tree: all, or the centroids of clusters in blocks; and the group of each."""
    groups = np.arange(len(rows))
    while len(rows) > MAX_CLUSTERED:
        embeddings, labels = _cluster_blocks(embeddings, rows, weights)
        weights = np.bincount(labels, weights).astype(np.float32)
        rows, groups = np.arange(len(embeddings)), labels[groups]
    return embeddings[rows].astype(np.float32), groups


def _cluster_blocks(embeddings: Embeddings, rows: Int, weights: Float32) -> tuple[Float32, Int]:
    """The centroids of the clusters of every block, and the cluster of each row."""
    labels, centroids = np.zeros(len(rows), np.int64), []
    n_labels = 0
    for block in _blocks(len(rows), MAX_CLUSTERED):
        members = embeddings[rows[block]].astype(np.float32)
        merges = merge_tree(members, weights[block])
        near = [merge for merge in merges if merge.distance <= BLOCK_DISTANCE]
        found = _labels(len(members), near or merges[: len(merges) // 2])
        centroids.append(_centroids(members, np.arange(len(members)), weights[block], found))
        labels[block] = n_labels + found
        n_labels += len(centroids[-1])
    return np.concatenate(centroids), labels


def _blocks(n: int, size: int = 1024) -> Iterator[slice]:
    """Long arrays in parts, because they are kept in half precision and used in single."""
    return (slice(start, start + size) for start in range(0, n, size))


@dataclass(frozen=True)
class Merge:
    kept: int
    removed: int
    distance: float


def merge_tree(embeddings: Float32, weights: Float32) -> list[Merge]:
    """All merges, nearest first, of clusters named by their first member; distances never decrease."""
    distances = 1 - embeddings @ embeddings.T
    np.fill_diagonal(distances, np.inf)
    sizes = weights.astype(np.float64)
    nearest = distances.argmin(axis=1)
    merges = []
    for _ in range(len(embeddings) - 1):
        first = int(distances[np.arange(len(nearest)), nearest].argmin())
        kept, removed = sorted((first, int(nearest[first])))
        merges.append(Merge(kept, removed, float(distances[kept, removed])))
        total = sizes[kept] + sizes[removed]
        row = (distances[kept] * sizes[kept] + distances[removed] * sizes[removed]) / total
        row[kept] = np.inf
        sizes[kept] = total
        distances[kept] = distances[:, kept] = row
        distances[removed] = distances[:, removed] = np.inf
        for stale in np.flatnonzero((nearest == kept) | (nearest == removed)):
            nearest[stale] = distances[stale].argmin()
        nearest[kept] = distances[kept].argmin()
    return merges


def _labels(n: int, merges: list[Merge]) -> Int:
    """0, 1, … in the order of the first members."""
    owner = np.arange(n)
    for merge in merges:
        owner[merge.removed] = merge.kept
    for index in range(n):  # a cluster is named by its first member, so the owner of the owner is known by now
        owner[index] = owner[owner[index]]
    return np.unique(owner, return_inverse=True)[1].astype(np.int64)


def _n_merges(sizes: Int, merges: list[Merge], min_members: int, n_speakers: tuple[int, int | None]) -> int:
    """How many merges to make: those within MAX_DISTANCE, or more or fewer for a number of speakers within bounds."""
    counts = _speaker_counts(sizes, merges, min_members)
    wanted = sum(merge.distance <= MAX_DISTANCE for merge in merges)
    lowest, highest = n_speakers[0], n_speakers[1] or len(sizes)
    bounded = min(max(int(counts[wanted]), lowest), highest)
    if counts[wanted] == bounded:
        return wanted
    misses = np.abs(counts - bounded)
    best = np.flatnonzero(misses == misses.min())
    return int(best[np.abs(best - wanted).argmin()])


def _speaker_counts(sizes: Int, merges: list[Merge], min_members: int) -> Int:
    """[merges + 1]: the number of clusters large enough, after each number of merges."""
    sizes = sizes.copy()
    counts = [int((sizes >= min_members).sum())]
    for merge in merges:
        n_large = int(sizes[merge.kept] >= min_members) + int(sizes[merge.removed] >= min_members)
        sizes[merge.kept] += sizes[merge.removed]
        counts.append(counts[-1] - n_large + int(sizes[merge.kept] >= min_members))
    return np.array(counts)


def _centroids(embeddings: Embeddings, rows: Int, weights: Float32, labels: Int) -> Float32:
    """[labels from 0 up, 256], of unit length; rows with the label -1 do not count."""
    sums = np.zeros((labels.max() + 1, embeddings.shape[1]), np.float32)
    for block in _blocks(len(rows)):
        members = embeddings[rows[block]].astype(np.float32) * weights[block, None]
        has_label = labels[block] >= 0
        np.add.at(sums, labels[block][has_label], members[has_label])
    centroids: Float32 = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return centroids


def _similarities(embeddings: Embeddings, centroids: Float32) -> Float32:
    """[embeddings, centroids]"""
    parts = [embeddings[block].astype(np.float32) @ centroids.T for block in _blocks(len(embeddings))]
    return np.concatenate(parts)


def _scores(similarities: Float32, clean_s: Float32, tracks: Int) -> Float32:
    """Similarities of pieces and clusters, where the local speaker counts the more the shorter the piece is."""
    weights: Float32 = np.maximum(clean_s, np.float32(1e-3))[:, None]
    starts = np.flatnonzero(np.diff(tracks, prepend=-1))
    sums = np.add.reduceat(similarities * weights, starts) / np.add.reduceat(weights, starts)
    of_tracks = np.repeat(sums, np.diff(starts, append=len(tracks)), axis=0)
    scores: Float32 = ((similarities * weights + of_tracks * TRACK_S) / (weights + TRACK_S)).astype(np.float32)
    return scores
