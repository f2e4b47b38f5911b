"""Speech detection in a stream against detection in the whole recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audio.media_files import read_clip
from choral.audio.recording import Recording
from choral.audio.speech_spans import speech_spans
from choral.audio.vad import speech_probabilities
from choral.server.realtime.turn_segmenter import SpeechEnd, SpeechStart, StreamingVad

THRESHOLD, MIN_SILENCE_S = 0.5, 0.5


@pytest.mark.parametrize("chunk_size", [160, 511, 4_000, 10**9])
def test_streaming_vad_finds_the_speech_of_the_whole_recording(speech_clips: list[Path], chunk_size: int) -> None:
    pause = np.zeros(16_000, np.int16)
    clip = np.concatenate([part for path in speech_clips for part in (pause, read_clip(path), pause)])
    with Recording.open(clip) as recording:
        probabilities = speech_probabilities(recording)
    spans = speech_spans(probabilities, clip.size, threshold=THRESHOLD, min_silence_s=MIN_SILENCE_S, pad_s=0.0)
    vad = StreamingVad(threshold=THRESHOLD, min_silence_s=MIN_SILENCE_S)
    chunks = [clip[start : start + chunk_size] for start in range(0, clip.size, chunk_size)]
    processed = [pair for chunk in chunks for pair in vad.process(chunk)]
    assert np.concatenate([*(frame for frame, _ in processed), vad.remainder]).tolist() == clip.tolist()
    changes = [(change.sample, type(change)) for _, change in processed if change is not None]
    assert changes == [edge for span in spans for edge in ((span.start, SpeechStart), (span.stop, SpeechEnd))]
    assert len(spans) >= 5
