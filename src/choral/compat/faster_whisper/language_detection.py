"""The language of a recording from one or more windows, by faster-whisper's rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from choral.audio.constants import WINDOW_MEL_FRAMES
from choral.audio.recording import Recording
from choral.engine.window import WindowAudio
from choral.longform.cuts import Cutter, clips_from, cut_padded, n_mel_frames
from choral.longform.speech_windows import speech_in, windows_of
from choral.longform.transcriber import Transcriber, detect_in
from choral.options import TranscribeOptions


@dataclass(frozen=True)
class DetectedLanguage:
    code: str
    probability: float
    probabilities: list[tuple[str, float]]  # of all languages, most probable first


def find_language(
    transcriber: Transcriber,
    recording: Recording,
    options: TranscribeOptions,
    *,
    n_windows: int = 1,
    threshold: float | None = 0.5,
) -> DetectedLanguage:
    """That of the first window where one is more probable than the threshold; else that of the most windows."""
    heard: list[DetectedLanguage] = []
    for audio in islice(_windows(transcriber, recording, options), max(n_windows, 1)):
        found = detect_in(transcriber.engine, audio).probabilities
        ranked = sorted(found.items(), key=lambda item: item[1], reverse=True)
        heard.append(DetectedLanguage(*ranked[0], ranked))
        if threshold is None or heard[-1].probability > threshold:
            return heard[-1]
    codes = [one.code for one in heard]
    return max(heard, key=lambda one: (codes.count(one.code), one.probability))


def _windows(transcriber: Transcriber, recording: Recording, options: TranscribeOptions) -> Iterator[WindowAudio]:
    """The windows that are transcribed, whose encodings are then in the cache; at least one."""
    cutter, is_empty = Cutter(recording, transcriber.dims.n_mels), True
    clips = clips_from(options.clip_timestamps, n_mel_frames(recording))
    if options.mode == "batched":
        for window in windows_of(recording, clips, options, only_speech=options.vad is not False):
            is_empty = False
            yield cut_padded(recording, window.start, window.stop - window.start)
    elif options.vad or options.clip_timestamps:
        for clip in speech_in(recording, clips, options) if options.vad else clips:
            for start in range(clip.start, clip.stop, WINDOW_MEL_FRAMES):
                is_empty = False
                yield cutter.cut(start, min(WINDOW_MEL_FRAMES, clip.stop - start))
    if is_empty:
        yield cutter.first_window()
        for start in range(WINDOW_MEL_FRAMES, n_mel_frames(recording), WINDOW_MEL_FRAMES):
            yield cutter.cut(start, min(WINDOW_MEL_FRAMES, n_mel_frames(recording) - start))
