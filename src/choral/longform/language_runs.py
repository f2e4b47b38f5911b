"""Where the spoken language changes: the language of each turn of a window.

A turn is what is spoken between two pauses, and is encoded by itself: the features of a whole window mix its languages.
A turn that leaves doubt follows its neighbours. A window in one language stays whole; otherwise its turns are decoded
one by one, from what is already encoded: joined, they would lose more text where one language was wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from choral.audio.constants import HOP_LENGTH, MEL_FRAMES_PER_SECOND
from choral.audio.recording import Recording
from choral.audio.speech_spans import speech_spans
from choral.audio.vad import VoiceDetector
from choral.engine.window import DetectLanguageParams, Window
from choral.longform.chain_types import ChainContext, Steps, WindowRange, request
from choral.longform.cuts import Clip, cut_padded
from choral.model.languages import to_code

MIN_PAUSE_S = 0.3  # between two turns
MIN_TURN_FRAMES = MEL_FRAMES_PER_SECOND * 3 // 2  # a shorter turn says too little: it is heard with the next
CHANGE_COST = math.log(10)  # a turn must be ten times as probable in another language to stand alone
MIN_PROBABILITY = 1e-6


@dataclass(frozen=True)
class LanguageRun(Clip):
    language: str


def find_runs(window: WindowRange, context: ChainContext) -> Steps[list[LanguageRun]]:
    """The parts of a window in one language each, in order, without gaps: all of it, or its turns."""
    allowed = [to_code(language) for language in context.options.languages]
    turns = turns_in(context.recording, window, context.options.vad_threshold)
    heard = []
    for turn in turns:
        audio = cut_padded(context.recording, turn.start, turn.stop - turn.start)
        languages = yield from request(Window(audio, DetectLanguageParams()))
        heard.append({code: p for code, p in languages.probabilities.items() if not allowed or code in allowed})
    chosen = most_probable(heard)
    if len(set(chosen)) == 1:
        return [LanguageRun(window.seek, window.stop, chosen[0])]
    return [LanguageRun(turn.start, turn.stop, language) for turn, language in zip(turns, chosen, strict=True)]


def turns_in(recording: Recording, window: WindowRange, threshold: float) -> list[Clip]:
    """The window, cut in the middle of its pauses."""
    samples = recording.samples(window.seek * HOP_LENGTH, window.stop * HOP_LENGTH)
    probabilities = VoiceDetector().predict(samples)
    spans = speech_spans(probabilities, samples.size, threshold=threshold, min_silence_s=MIN_PAUSE_S, pad_s=0.0)
    cuts = [window.seek + (one.stop + other.start) // 2 // HOP_LENGTH for one, other in pairwise(spans)]
    borders = [window.seek]
    for cut in cuts:
        if min(cut - borders[-1], window.stop - cut) >= MIN_TURN_FRAMES:
            borders.append(cut)
    return [Clip(start, stop) for start, stop in pairwise([*borders, window.stop])]


def most_probable(heard: Sequence[Mapping[str, float]]) -> list[str]:
    """A language for each turn: the sequence with the lowest cost (Viterbi), where every change adds `CHANGE_COST`."""
    best: dict[str, tuple[float, list[str]]] = {"": (0.0, [])}
    for probabilities in heard:
        cheapest = min(best.values(), key=lambda path: path[0])
        changed = (cheapest[0] + CHANGE_COST, cheapest[1])
        best = {
            code: extended(min(best.get(code, changed), changed, key=lambda path: path[0]), code, probability)
            for code, probability in probabilities.items()
        }
    return min(best.values(), key=lambda path: path[0])[1]


def extended(path: tuple[float, list[str]], code: str, probability: float) -> tuple[float, list[str]]:
    return path[0] - math.log(max(probability, MIN_PROBABILITY)), [*path[1], code]
