"""`diarize`: who spoke when in a recording, of any length, in bounded memory.

What is kept of each window (2 s of audio) is 4 kB of activity and about ten embeddings of 512 bytes, 15 MB for an hour.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording
from choral.diarization import Diarization, Speaker, SpeakerTurn
from choral.errors import UsageError
from choral.options import MAX_SPEAKERS
from choral.speakers.clustering import Clusters, cluster
from choral.speakers.embedding import SpeakerFrames, embed_window
from choral.speakers.naming import name_speakers
from choral.speakers.networks import SpeakerNetworks, load_networks
from choral.speakers.piece_table import PieceTable
from choral.speakers.reconstruction import active_frames, spans_of
from choral.speakers.segmentation import SegmentedWindow, segment_windows
from choral.speakers.voice_options import options_by_name

if TYPE_CHECKING:
    from choral.audio.recording import AudioInput
    from choral.speakers.voices import Voices

SpeakerCount = int | tuple[int, ...] | None
OnDiarized = Callable[[float], None]  # seconds of audio


def diarize(
    audio: AudioInput | Recording,
    speakers: SpeakerCount = None,
    *,
    voices: Voices | None = None,
    speaker_names: Sequence[str] = (),
) -> Diarization:
    """Find the speakers of a recording and their turns, without transcribing it.

    `speakers` is their number if it is known, or its bounds: (2, 5). `voices` are clips of known persons by name, or a
    folder of them; `speaker_names` are names in the order of first turns. The networks are downloaded when first used.
    """
    bounds = speaker_bounds(speakers)
    options = options_by_name(diarize=True, voices=voices, speaker_names=speaker_names)
    networks = load_networks()
    opened = contextlib.nullcontext(audio) if isinstance(audio, Recording) else Recording.open(audio)
    with opened as recording:
        return name_speakers(diarize_recording(recording, networks, bounds), options.voices, options.speaker_names)


def diarize_recording(
    recording: Recording,
    networks: SpeakerNetworks,
    bounds: tuple[int, int | None] = (1, None),
    on_diarized: OnDiarized = lambda seconds: None,
) -> Diarization:
    """The recording may still be growing: each window waits for its own samples."""
    frames = SpeakerFrames(recording, networks)
    windows: list[SegmentedWindow] = []
    pieces = PieceTable()
    for index, window in enumerate(segment_windows(recording, networks)):
        windows.append(window)
        pieces.add(embed_window(index, window, frames, networks))
        on_diarized(window.start_sample / SAMPLE_RATE)
    if not pieces:
        return Diarization((), (), recording.duration)
    clusters = cluster(pieces.embeddings, pieces.clean_s, pieces.tracks, bounds)
    return _to_diarization(windows, pieces, clusters, recording.duration)


def _to_diarization(
    windows: list[SegmentedWindow], pieces: PieceTable, clusters: Clusters, duration_s: float
) -> Diarization:
    active = active_frames(windows, lambda window: pieces.speakers_of(window, clusters), len(clusters.centroids))
    spans = [spans_of(active[:, label], duration_s) for label in range(active.shape[1])]
    order = sorted((label for label in range(len(spans)) if spans[label]), key=lambda label: spans[label][0])
    names = {label: f"Speaker {number}" for number, label in enumerate(order, 1)}
    turns = [SpeakerTurn(start, end, names[label]) for label in order for start, end in spans[label]]
    return Diarization(
        turns=tuple(sorted(turns, key=lambda turn: (turn.start, turn.end))),
        speakers=tuple(
            Speaker(
                names[label],
                total_s=sum(end - start for start, end in spans[label]),
                embedding=tuple(clusters.centroids[label].tolist()),
            )
            for label in order
        ),
        duration=duration_s,
    )


def speaker_bounds(speakers: SpeakerCount) -> tuple[int, int | None]:
    """The lowest and the highest number of speakers; None: any."""
    if speakers is None:
        return 1, None
    bounds = speakers if isinstance(speakers, tuple | list) else (speakers,)
    if not 1 <= len(bounds) <= 2 or not all(type(bound) is int for bound in bounds):
        bounds = (0,)
    if not 1 <= bounds[0] <= bounds[-1] <= MAX_SPEAKERS:
        raise UsageError(
            f"speakers is {speakers!r}; it must be a number from 1 to {MAX_SPEAKERS}, or two in order: (2, 5)"
        )
    return bounds[0], bounds[-1]
