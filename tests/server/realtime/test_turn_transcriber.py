"""Hypotheses of a turn with a real model, in fixed steps: what was shown stays, and long turns go on for ever."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import choral
from audio.media_files import Sound
from choral.api import Model
from choral.longform.fallback import Steps
from choral.server.realtime.buffer import AudioBuffer
from choral.server.realtime.session_config import TranscriptionConfig
from choral.server.realtime.turn import Turn
from choral.server.realtime.turn_scheduler import TurnEvents, TurnScheduler
from choral.server.realtime.turn_transcriber import LONGEST_S, TurnTranscriber
from live_client import RATE, silence, words

PARTS = ("dashwood had then", "how much there might be", "young man", "woman", "made still more respectable", "himself")


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[Model]:
    with choral.load(tiny_en_pt) as model:
        yield model


class Speaker:
    """Says something, and has it heard each time."""

    def __init__(self, model: Model, prompt: str = "") -> None:
        self.model, self.turn = model, Turn(TranscriptionConfig("tiny.en", prompt=prompt), 0, AudioBuffer())
        self.hearing = TurnTranscriber(model.transcriber, lambda turn, text: self.texts.append(text))
        self.texts: list[str] = []

    def hear(self, steps: Steps[None]) -> None:
        result = None
        while True:
            try:
                window = steps.send(result)
            except StopIteration:
                return
            result = self.model.transcriber.engine.submit(window).result()

    def say(self, sound: Sound, step_s: float) -> None:
        for start in range(0, sound.size, round(step_s * RATE)):
            self.turn.append(sound[start : start + round(step_s * RATE)])
            self.hear(self.hearing.more(self.turn))

    def end(self) -> str:
        self.turn.end()
        self.hear(self.hearing.rest(self.turn))
        return "".join(self.texts)


@pytest.fixture(scope="module")
def long_sound(sentences: list[Sound]) -> Sound:
    """Half a minute and more without an end."""
    order = [*sentences, *sentences[:2]]
    return np.concatenate([part for sentence in order for part in (sentence, silence(0.3))])


def test_a_long_turn_is_cut_where_sentences_end(model: Model, long_sound: Sound) -> None:
    speaker = Speaker(model)
    lengths_s = []
    for start in range(0, 27 * RATE, 3 * RATE):
        speaker.say(long_sound[start : start + 3 * RATE], 3.0)
        lengths_s.append(speaker.turn.audio.duration_s)
    n_cuts = sum(later < earlier for earlier, later in pairwise(lengths_s))
    assert n_cuts >= 1
    assert max(lengths_s) < LONGEST_S
    assert len(speaker.texts) > 4
    text = " ".join(words(speaker.end()))
    for part in PARTS:
        assert part in text
    assert text.count("young man") == 1  # nothing twice, nothing lost at the cut


def test_a_turn_that_is_far_ahead_is_caught_up_with(model: Model, long_sound: Sound) -> None:
    """ClientMessage was shown, and then more sound came at once than a window holds."""
    speaker = Speaker(model)
    speaker.say(long_sound[: 4 * RATE], 1.0)
    shown = "".join(speaker.texts)
    assert "john dashwood" in shown.lower()
    speaker.turn.append(long_sound[4 * RATE :])
    text = speaker.end()
    assert text.startswith(shown)
    assert text.count("ashwood") == 2
    assert [part for part in PARTS if part not in " ".join(words(text))] == []


def test_what_was_shown_need_not_be_followed_by_more(model: Model, sentences: list[Sound]) -> None:
    speaker = Speaker(model)
    speaker.say(np.concatenate([sentences[4], silence(2)]), 1.5)
    before = " ".join(words("".join(speaker.texts)))
    after = " ".join(words(speaker.end()))
    assert before == after
    assert after.endswith("himself")


def test_a_session_that_was_given_up_asks_for_nothing_more(model: Model, sentences: list[Sound]) -> None:
    events = TurnEvents(lambda turn, text: None, lambda turn: None, lambda turn, error: None)
    desk = TurnScheduler(model.transcriber, events, lambda future: None)
    model.transcriber.engine.cancel_all(desk.caller)  # the client has left, and the thread does not know yet
    turn = Turn(TranscriptionConfig("tiny.en"), 0, AudioBuffer(sentences[1]))
    turn.end()
    desk.finish(turn)
    assert desk.is_idle


def test_a_prompt_is_heeded(model: Model, sentences: list[Sound]) -> None:
    plain, prompted = Speaker(model), Speaker(model, prompt="a letter from mr john dashwood: no capitals, no stops")
    for speaker in (plain, prompted):
        speaker.say(sentences[0][: 4 * RATE], 2.0)
    assert "".join(plain.texts) != "".join(prompted.texts)
