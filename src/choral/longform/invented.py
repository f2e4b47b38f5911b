"""Text that the model invents where nobody speaks: doubted by its scores, confirmed by the voice detector.

Doubted is only text that stayed improbable or repetitive at every temperature, that the model itself takes for silence,
or that has no words: quiet speech which the voice detector misses keeps its text. openai-whisper keeps doubtful text,
and so does sequential mode without the voice detector.
"""

from __future__ import annotations

from dataclasses import replace

from choral.audio.constants import HOP_LENGTH, SAMPLE_RATE
from choral.audio.speech_spans import speech_spans
from choral.audio.vad import VoiceDetector
from choral.longform.chain_types import Accepted, Attempt, ChainContext, WindowRange
from choral.longform.fallback import needs_fallback
from choral.options import TranscribeOptions
from choral.transcript import Segment

MIN_AVG_LOGPROB = -2.0  # below, the text is noise whatever the audio is: a token has a probability of an eighth
MIN_NO_SPEECH_PROB = 0.5
MARGIN_S = 0.3  # timestamps of segments are not exact


def drops_invented(options: TranscribeOptions) -> bool:
    return options.mode == "batched" or bool(options.vad)


def drop_invented(accepted: Accepted, attempt: Attempt, window: WindowRange, context: ChainContext) -> Accepted:
    """Without the segments in which nobody speaks, if the window is in doubt."""
    if not is_doubtful(attempt, context.options):
        return accepted
    if attempt.avg_logprob < MIN_AVG_LOGPROB:
        return Accepted((), window.stop, is_discarded=True)
    voices = voices_in(window, context)
    kept = tuple(segment for segment in accepted.segments if is_spoken(segment, voices))
    return replace(accepted, segments=kept, is_discarded=accepted.is_discarded or not kept)


def is_doubtful(attempt: Attempt, options: TranscribeOptions) -> bool:
    is_likely_silence = options.no_speech_threshold is not None and attempt.no_speech_prob > MIN_NO_SPEECH_PROB
    has_words = any(letter.isalnum() for letter in attempt.text)
    return not has_words or is_likely_silence or needs_fallback(attempt, options)


def voices_in(window: WindowRange, context: ChainContext) -> list[tuple[float, float]]:
    """Where the voice detector hears speech, in seconds of the recording."""
    start, options = window.seek * HOP_LENGTH, context.options
    samples = context.recording.samples(start, window.stop * HOP_LENGTH)
    spans = speech_spans(
        VoiceDetector().predict(samples),
        samples.size,
        threshold=options.vad_threshold,
        min_silence_s=options.vad_min_silence,
        pad_s=MARGIN_S,
    )
    return [((start + span.start) / SAMPLE_RATE, (start + span.stop) / SAMPLE_RATE) for span in spans]


def is_spoken(segment: Segment, voices: list[tuple[float, float]]) -> bool:
    return any(segment.start < end_s and start_s < segment.end for start_s, end_s in voices)
