"""Token log-probabilities: with every engine and search, through JSON and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from choral.api import Model, load
from choral.errors import UsageError
from choral.formats import render
from choral.jobs.record import transcript_from_json, transcript_to_json
from choral.transcript import Transcript


@pytest.fixture(scope="module", params=["torch", "ctranslate2"])
def model(request: pytest.FixtureRequest, tiny_en_pt: Path) -> Iterator[Model]:
    with load(tiny_en_pt, engine=request.param, compute_type="float32") as model:
        yield model


def check(transcript: Transcript) -> None:
    """The token log-probabilities of a window, plus that of the end of text, add up to its average."""
    logprobs = [logprob for segment in transcript.segments for logprob in segment.token_logprobs or ()]
    assert len(logprobs) == sum(len(segment.tokens) for segment in transcript.segments) > 20
    assert max(logprobs) <= 0
    end = transcript.segments[0].avg_logprob * (len(logprobs) + 1) - sum(logprobs)
    assert -3 < end <= 1e-2


def test_greedy_and_sampling(model: Model, jfk: Path) -> None:
    check(model.transcribe(jfk, token_logprobs=True))
    check(model.transcribe(jfk, token_logprobs=True, temperature=0.2, best_of=3))


def test_beam_search(model: Model, jfk: Path) -> None:
    if model.engine == "torch":
        check(model.transcribe(jfk, token_logprobs=True, beam_size=3))
    else:
        with pytest.raises(UsageError, match=r"use beam_size 1, or --engine torch"):
            model.transcribe(jfk, token_logprobs=True, beam_size=3)


def test_prefix_tokens_are_excluded(model: Model, jfk: Path) -> None:
    transcript = model.transcribe(jfk, token_logprobs=True, prefix=" And so my fellow", timestamps=False)
    (segment,) = transcript.segments
    assert segment.token_logprobs is not None
    assert len(segment.token_logprobs) == len(segment.tokens)
    assert model.text_tokens(segment)[0].text == b" Americans"
    assert model.text_tokens(segment)[0].logprob > -0.5  # a word that is clearly audible


def test_tokens_decode_to_the_text(model: Model, jfk: Path) -> None:
    transcript = model.transcribe(jfk, token_logprobs=True)
    tokens = [token for segment in transcript.segments for token in model.text_tokens(segment)]
    assert b"".join(token.text for token in tokens).decode() == transcript.text


def test_absent_by_default(model: Model, jfk: Path) -> None:
    transcript = model.transcribe(jfk)
    assert [segment.token_logprobs for segment in transcript.segments] == [None] * len(transcript.segments)
    assert "token_logprobs" not in render(transcript, "verbose_json")
    with pytest.raises(UsageError, match="token_logprobs=True"):
        model.text_tokens(transcript.segments[0])


def test_json_round_trip(model: Model, jfk: Path) -> None:
    transcript = model.transcribe(jfk, token_logprobs=True)
    assert transcript_from_json(transcript_to_json(transcript)) == transcript
    written = json.loads(render(transcript, "verbose_json"))["segments"]
    assert [tuple(s["token_logprobs"]) for s in written] == [s.token_logprobs for s in transcript.segments]
