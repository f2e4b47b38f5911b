"""`options_by_name`: options as a program names them, where `voices` may still be clips or a folder of clips.

`TranscribeOptions` has embeddings, which are small enough for jobs and for messages between processes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from choral.options import TranscribeOptions


def options_by_name(**values: Any) -> TranscribeOptions:
    """`TranscribeOptions.of`, with an embedding of each voice; wrong options raise before any is computed."""
    voices = values.get("voices")
    if voices is None:
        return TranscribeOptions.of(**values)
    options = TranscribeOptions.of(**values | {"voices": {}})
    from choral.speakers.voices import read_voices  # numpy and the networks only where there are voices

    return replace(options, voices=read_voices(voices))
