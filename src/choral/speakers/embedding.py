"""Embeddings of what the local speakers of windows say: 256 numbers that are near each other for one voice.

The convolutions, nearly all of the work, run once over the recording, in chunks, and only where somebody speaks.
Statistics are taken over pieces of two seconds in which a local speaker speaks alone, because segmentation often takes
two similar voices for one local speaker, which the embeddings of pieces tell apart.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording
from choral.speakers.fbank import FRAME_SAMPLES as FBANK_SAMPLES
from choral.speakers.fbank import HOP_SAMPLES, fbank
from choral.speakers.networks import FRAME_SIZE, Float32, SpeakerNetworks
from choral.speakers.segmentation import (
    CENTER_S,
    FRAME_S,
    N_FRAMES,
    N_LOCAL,
    WINDOW_SAMPLES,
    Bool,
    SegmentedWindow,
)

STRIDE = 8  # features per frame of the embedding network
FRAME_SAMPLES = STRIDE * HOP_SAMPLES  # 80 ms
CHUNK_FRAMES = 128
MARGIN_FRAMES = 8  # before and after a chunk, because the network pads its input with zeros
MAX_CHUNKS = 3  # kept: a window lies in at most two
MIN_CLEAN_S = 0.4  # of speech alone; with less, overlapped speech is used too
MIN_WEIGHT = 1.5  # frames that an embedding needs
PIECE_FRAMES = 59  # of segmentation, 1 s: what a piece stands for
CONTEXT_FRAMES = 30  # before and after, which its embedding also sees
MAX_PAUSE_FRAMES = 30  # within a piece


@dataclass(frozen=True)
class SpeechPiece:
    window: int  # its index
    local: int  # speaker, 0 to 2
    first: int  # frame of the window, and up to `stop`: all that the embedding decides about
    stop: int
    clean_s: float  # of speech without others
    embedding: npt.NDArray[np.float16]  # of unit length; in half precision, because all are kept until the end


class SpeakerFrames:
    """The frames of the embedding network, computed where they are asked for, in the order of the recording."""

    def __init__(self, recording: Recording, networks: SpeakerNetworks) -> None:
        self._recording, self._networks = recording, networks
        self._chunks: OrderedDict[int, Float32] = OrderedDict()

    def between(self, first: int, stop: int) -> Float32:
        """[stop - first, 2560], fewer at the end of the recording."""
        parts = []
        for index in range(first // CHUNK_FRAMES, (stop - 1) // CHUNK_FRAMES + 1):
            offset = index * CHUNK_FRAMES
            parts.append(self._chunk(index)[max(0, first - offset) : stop - offset])
        return np.concatenate(parts)

    def _chunk(self, index: int) -> Float32:
        if index not in self._chunks:
            self._chunks[index] = self._compute(index)
            while len(self._chunks) > MAX_CHUNKS:
                self._chunks.popitem(last=False)
        return self._chunks[index]

    def _compute(self, index: int) -> Float32:
        first = max(0, index * CHUNK_FRAMES - MARGIN_FRAMES)
        stop = (index + 1) * CHUNK_FRAMES + MARGIN_FRAMES
        overhang = FBANK_SAMPLES - HOP_SAMPLES
        features = fbank(self._recording.samples(first * FRAME_SAMPLES, stop * FRAME_SAMPLES + overhang))
        if len(features) < STRIDE:
            return np.zeros((0, FRAME_SIZE), np.float32)
        frames = self._networks.speaker_frames(features - features.mean(axis=0))
        skipped = index * CHUNK_FRAMES - first
        return frames[skipped : skipped + CHUNK_FRAMES]


def embed_window(
    index: int, window: SegmentedWindow, frames: SpeakerFrames, networks: SpeakerNetworks
) -> list[SpeechPiece]:
    """The pieces of all local speakers of a window that have enough speech for an embedding."""
    active = window.active
    is_alone = active.sum(axis=1) == 1
    pieces: list[SpeechPiece] = []
    for local in range(N_LOCAL):
        clean = active[:, local] & is_alone
        speech = clean if clean.sum() * FRAME_S >= MIN_CLEAN_S else active[:, local]
        found = []
        for first, stop in divide(speech):
            heard = speech.copy()
            heard[: max(0, first - CONTEXT_FRAMES)] = heard[stop + CONTEXT_FRAMES :] = False
            embedding = _embed(window.start_sample, heard, frames, networks)
            if embedding is not None:
                clean_s = float((heard & clean).sum()) * FRAME_S
                found.append(SpeechPiece(index, local, first, stop, clean_s, embedding.astype(np.float16)))
        pieces += _without_gaps(found)
    return pieces


def divide(speech: Bool) -> list[tuple[int, int]]:
    """Spans of about a second, as (first, stop), that lie between pauses and together have all speech."""
    active = np.flatnonzero(speech)
    breaks = np.flatnonzero(np.diff(active) > MAX_PAUSE_FRAMES)
    spans = []
    for stretch in np.split(active, breaks + 1) if active.size else ():
        first, stop = int(stretch[0]), int(stretch[-1]) + 1
        edges = np.linspace(first, stop, max(1, round((stop - first) / PIECE_FRAMES)) + 1).round().astype(int).tolist()
        spans += list(pairwise(edges))
    return spans


def _without_gaps(pieces: list[SpeechPiece]) -> list[SpeechPiece]:
    """From the first frame of the window to the last; between two pieces, each stands for the half that is nearer."""
    middles = [(one.stop + other.first) // 2 for one, other in pairwise(pieces)]
    edges = pairwise([0, *middles, N_FRAMES])
    return [replace(piece, first=first, stop=stop) for piece, (first, stop) in zip(pieces, edges, strict=False)]


def _embed(start_sample: int, heard: Bool, frames: SpeakerFrames, networks: SpeakerNetworks) -> Float32 | None:
    first, weights = frame_weights(start_sample, heard)
    if weights.sum() < MIN_WEIGHT:
        return None
    speech = frames.between(first, first + weights.size)
    weights = weights[: len(speech)]
    return networks.embed(speech, weights) if weights.sum() >= MIN_WEIGHT else None


def frame_weights(start_sample: int, active: Bool) -> tuple[int, Float32]:
    """The first frame of the embedding network with speech, and the share of speech in it and those that follow."""
    first = -(-start_sample // FRAME_SAMPLES)
    stop = (start_sample + WINDOW_SAMPLES) // FRAME_SAMPLES
    centers_s = (np.arange(first, stop) * FRAME_SAMPLES + FBANK_SAMPLES / 2 - start_sample) / SAMPLE_RATE
    half_s = FRAME_SAMPLES / 2 / SAMPLE_RATE
    lows = np.rint((centers_s - half_s - CENTER_S) / FRAME_S).astype(int).clip(0, N_FRAMES - 1)
    highs = np.rint((centers_s + half_s - CENTER_S) / FRAME_S).astype(int).clip(1, N_FRAMES)
    sums = np.concatenate([[0], np.cumsum(active)])
    weights = ((sums[highs] - sums[lows]) / np.maximum(1, highs - lows)).astype(np.float32)
    speech = np.flatnonzero(weights)
    if not speech.size:
        return first, np.zeros(0, np.float32)
    return first + int(speech[0]), weights[speech[0] : speech[-1] + 1]
