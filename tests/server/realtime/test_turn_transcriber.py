"""Transcription of turns with a real model: stable text, long turns, prompts, and local agreement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import choral
from audio.media_files import Int16Samples
from choral.api import Model
from choral.config import EngineName
from choral.longform.chain_types import Steps
from choral.model.tokenizer import Tokenizer
from choral.server.realtime.session_config import Include, SessionConfig, TranscriptionConfig
from choral.server.realtime.turn import AudioBuffer, Turn
from choral.server.realtime.turn_scheduler import TurnCallbacks, TurnScheduler
from choral.server.realtime.turn_transcriber import MAX_PIECE_S, TurnTranscriber, local_agreement
from choral.transcript import Token
from realtime_client import RATE, silence, words

PARTS = ("dashwood had then", "how much there might be", "young man", "woman", "made still more respectable", "himself")


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[Model]:
    with choral.load(tiny_en_pt, compute_type="float32") as model:
        yield model


class Speaker:
    """Adds audio to a turn in steps, with a hypothesis after each."""

    def __init__(self, model: Model, prompt: str = "", include: Include = ()) -> None:
        config = SessionConfig(transcription=TranscriptionConfig(model="tiny.en", prompt=prompt), include=include)
        self.model, self.turn = model, Turn.begin(config, 0, AudioBuffer())
        self.transcriber = TurnTranscriber(model.transcriber, self.add)
        self.texts: list[str] = []
        self.tokens: list[Token] = []

    def add(self, turn: Turn, text: str, tokens: Sequence[Token]) -> None:
        self.texts.append(text)
        self.tokens += tokens

    def run(self, steps: Steps[None]) -> None:
        result = None
        while True:
            try:
                window = steps.send(result)
            except StopIteration:
                return
            result = self.model.transcriber.engine.submit(window).result()

    def say(self, clip: Int16Samples, step_s: float) -> None:
        for start in range(0, clip.size, round(step_s * RATE)):
            self.turn.append(clip[start : start + round(step_s * RATE)])
            self.run(self.transcriber.hypothesize(self.turn))

    def end(self) -> str:
        self.turn.end()
        self.run(self.transcriber.finish(self.turn))
        return "".join(self.texts)


@pytest.fixture(scope="module")
def long_samples(sentences: list[Int16Samples]) -> Int16Samples:
    """More than half a minute without a long pause."""
    order = [*sentences, *sentences[:2]]
    return np.concatenate([part for sentence in order for part in (sentence, silence(0.3))])


def test_long_turn_is_cut_after_sentences(model: Model, long_samples: Int16Samples) -> None:
    speaker = Speaker(model)
    lengths_s = []
    for start in range(0, 27 * RATE, 3 * RATE):
        speaker.say(long_samples[start : start + 3 * RATE], 3.0)
        lengths_s.append(speaker.turn.audio.duration_s)
    n_cuts = sum(later < earlier for earlier, later in pairwise(lengths_s))
    assert n_cuts >= 1
    assert max(lengths_s) < MAX_PIECE_S
    assert len(speaker.texts) > 4
    text = " ".join(words(speaker.end()))
    for part in PARTS:
        assert part in text
    assert text.count("young man") == 1  # nothing twice, nothing lost at the cut


def test_turn_longer_than_a_window_is_finished(model: Model, long_samples: Int16Samples) -> None:
    """After some confirmed text, more audio arrives at once than a window holds."""
    speaker = Speaker(model)
    speaker.say(long_samples[: 4 * RATE], 1.0)
    shown = "".join(speaker.texts)
    assert "john dashwood" in shown.lower()
    speaker.turn.append(long_samples[4 * RATE :])
    text = speaker.end()
    assert text.startswith(shown)
    assert text.count("ashwood") == 2
    assert [part for part in PARTS if part not in " ".join(words(text))] == []


def test_confirmed_text_may_be_the_whole_text(model: Model, sentences: list[Int16Samples]) -> None:
    speaker = Speaker(model)
    speaker.say(np.concatenate([sentences[4], silence(2)]), 1.5)
    before = " ".join(words("".join(speaker.texts)))
    after = " ".join(words(speaker.end()))
    assert before == after
    assert after.endswith("himself")


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_every_token_of_a_text_has_its_log_probability(
    tiny_en_pt: Path, long_samples: Int16Samples, engine: EngineName
) -> None:
    """In text that was confirmed, in the rest of a turn, and in a turn that is transcribed as a file."""
    with choral.load(tiny_en_pt, engine=engine, compute_type="float32") as model:
        for step_s in (2.0, 0.0):
            speaker = Speaker(model, include=("item.input_audio_transcription.logprobs",))
            if step_s:
                speaker.say(long_samples[: 6 * RATE], step_s)
                assert speaker.tokens
            speaker.turn.append(long_samples[6 * RATE if step_s else 0 : 9 * RATE])
            text = speaker.end()
            assert "dashwood had then" in text.lower()
            assert b"".join(token.text for token in speaker.tokens).decode() == text
            assert all(-20 < token.logprob <= 0 for token in speaker.tokens)
            assert sum(token.logprob for token in speaker.tokens) / len(speaker.tokens) > -1


def test_cancelled_session_submits_nothing(model: Model, sentences: list[Int16Samples]) -> None:
    callbacks = TurnCallbacks(lambda turn, text, tokens: None, lambda turn: None, lambda turn, error: None)
    scheduler = TurnScheduler(model.transcriber, callbacks, lambda future: None)
    model.transcriber.engine.cancel_all(
        scheduler.caller
    )  # the client has disconnected, and the thread does not know yet
    turn = Turn(TranscriptionConfig(model="tiny.en"), 0, AudioBuffer(sentences[1]))
    turn.end()
    scheduler.end_turn(turn)
    assert scheduler.is_idle


def test_prompt_changes_the_text(model: Model, sentences: list[Int16Samples]) -> None:
    plain, prompted = Speaker(model), Speaker(model, prompt="a letter from mr john dashwood: no capitals, no stops")
    for speaker in (plain, prompted):
        speaker.say(sentences[0][: 4 * RATE], 2.0)
    assert "".join(plain.texts) != "".join(prompted.texts)


@pytest.mark.parametrize(
    ("older", "newer", "common"),
    [
        (" And so my fellow", " And so my fellow Americans", " And so my fellow"),
        (" And so, My fellow.", " and so my fellow Americans", " and so my fellow"),
        (
            " my fellow Americans.",
            " my fellow Americans.",
            " my fellow Americans",
        ),  # the end of the sentence is not certain
        (" my fellow Americans. Ask", " my fellow Americans, ask not", " my fellow Americans, ask"),
        (" the trans", " the translation of it", " the"),
        ("", " And so", ""),
        (" You", " And so", ""),
    ],
)
def test_local_agreement_confirms_common_first_words(tokenizer: Tokenizer, older: str, newer: str, common: str) -> None:
    tokens = tokenizer.encode(newer)
    found = local_agreement(tokenizer.encode(older), tokens, tokenizer, "en")
    assert found == tuple(tokens[: len(found)])
    assert tokenizer.decode(found) == common


def test_local_agreement_stops_before_an_incomplete_character(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(" go 語")
    found = local_agreement(tokens[:-1], tokens[:-1], tokenizer, "en")
    assert tokenizer.decode(found) == " go"
