"""Clips of known voices as a client sends them: data URLs with audio of 2 to 10 s, one for each name.

They are decoded and embedded where the request runs, because they are as hostile as any upload.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from choral.audio.recording import Recording
from choral.errors import AudioError, UsageError
from choral.speakers.voices import Embedding, voice_embedding

MIN_CLIP_S, MAX_CLIP_S = 2.0, 10.0
ROUNDING_S = 0.05  # codecs add some samples, or lose them
DATA_URL = r"data:[^,]{0,200};base64,"  # what such a URL starts with


@dataclass(frozen=True)
class ReferenceClip:
    name: str  # of the person who speaks
    url: str


def embed_references(clips: Sequence[ReferenceClip], cancel_event: threading.Event) -> dict[str, Embedding]:
    """Raises `UsageError` for a clip that cannot be used."""
    return {clip.name: _embed(clip, cancel_event) for clip in clips}


def _embed(clip: ReferenceClip, cancel_event: threading.Event) -> Embedding:
    try:
        audio = base64.b64decode(clip.url.partition(",")[2], validate=True)
        with Recording.open(audio, max_duration_s=2 * MAX_CLIP_S, cancel_event=cancel_event) as recording:
            if not MIN_CLIP_S - ROUNDING_S <= recording.duration <= MAX_CLIP_S + ROUNDING_S:
                raise _unusable(clip, f"it has {recording.duration:.1f} s; send {MIN_CLIP_S:g} to {MAX_CLIP_S:g} s")
            return voice_embedding(recording)
    except binascii.Error as error:
        raise _unusable(clip, "it is not valid base64") from error
    except AudioError as error:
        raise _unusable(clip, str(error)) from error


def _unusable(clip: ReferenceClip, reason: str) -> UsageError:
    return UsageError(f"known_speaker_references: the clip of {clip.name!r} cannot be used: {reason}")
