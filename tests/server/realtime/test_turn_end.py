"""semantic_vad: turns end where they sound complete, heard by a real network in real speech."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import choral
from audio.media_files import Int16Samples
from choral.errors import DownloadFailed
from choral.model.store import ModelStore
from choral.server.model_names import ModelNames
from choral.server.realtime import turn_end
from choral.server.realtime.session import Session, SessionDeps, SessionStart
from choral.server.realtime.session_config import Eagerness, SessionConfig, TurnDetection
from choral.server.realtime.session_inbox import ClientMessage
from choral.server.realtime.turn_end import DetectorLoader, TurnEndDetector
from choral.server.realtime.turn_segmenter import TurnSegmenter, TurnStarted
from realtime_client import FORMATS, RATE, RealtimeClient, silence, words


def turn_ends_s(detector: TurnEndDetector | None, clip: Int16Samples, eagerness: Eagerness = "auto") -> list[float]:
    """Where turns end, in seconds from the start."""
    detection = TurnDetection(type="semantic_vad", eagerness=eagerness)
    segmenter = TurnSegmenter(SessionConfig(turn_detection=detection), detector)
    chunks = [clip[start : start + RATE // 10] for start in range(0, clip.size, RATE // 10)]
    changes = [change for chunk in chunks for change in segmenter.add(chunk)]
    return [change.stop / RATE for change in changes if not isinstance(change, TurnStarted)]


def test_a_pause_within_a_sentence_ends_no_turn(turn_end_detector: TurnEndDetector, jfk_samples: Int16Samples) -> None:
    """ "And so, my fellow Americans. Ask not … for you, ask what …": pauses of most of a second, two complete turns."""
    clip = np.concatenate([jfk_samples, silence(5)])
    assert turn_ends_s(turn_end_detector, clip) == pytest.approx([2.5, 10.7], abs=0.2)
    assert len(turn_ends_s(None, clip, "high")) > 2  # by silence alone


@pytest.mark.parametrize(("eagerness", "max_silence_s"), [("high", 2.0), ("auto", 4.0), ("low", 8.0)])
def test_silence_ends_a_turn_that_is_not_complete(
    turn_end_detector: TurnEndDetector, sentences: list[Int16Samples], eagerness: Eagerness, max_silence_s: float
) -> None:
    clip = sentences[4][: sentences[4].size // 2]
    assert turn_end_detector.probability(np.concatenate([clip, silence(0.2)])) < 0.2
    [end_s] = turn_ends_s(turn_end_detector, np.concatenate([clip, silence(9)]), eagerness)
    assert end_s == pytest.approx(clip.size / RATE + max_silence_s, abs=0.35)


def test_only_the_end_of_a_long_turn_counts(turn_end_detector: TurnEndDetector, sentences: list[Int16Samples]) -> None:
    joined = np.concatenate([*sentences[:3], silence(0.2)])
    assert turn_end_detector.probability(joined) == pytest.approx(turn_end_detector.probability(joined[-8 * RATE :]))
    assert turn_end_detector.probability(joined) > 0.5
    assert 0 <= turn_end_detector.probability(silence(0.1)) <= 1


def test_session(turn_end_detector: TurnEndDetector, session: RealtimeClient, jfk_samples: Int16Samples) -> None:
    session.configure(format=FORMATS["pcm16"], turn_detection={"type": "semantic_vad", "eagerness": "high"})
    assert session.events[-1]["session"]["audio"]["input"]["turn_detection"]["eagerness"] == "high"
    session.append_audio(np.concatenate([jfk_samples, silence(1)]).tobytes())
    first, second = " ".join(words(session.wait_for_text())), " ".join(words(session.wait_for_text()))
    assert first.endswith("fellow americans")
    assert second.startswith("ask not")
    assert second.endswith("do for your country")
    assert "warning" not in session.event_types


@pytest.fixture(scope="module")
def model(tiny_en_ct2: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_en_ct2, engine="ctranslate2") as model:
        yield model


class NullMetrics:
    def add_audio(self, duration_s: float) -> None: ...

    def observe_text(self, delay_s: float) -> None: ...

    def observe_completed(self, delay_s: float) -> None: ...


def test_turns_end_by_silence_where_the_network_is_missing(
    model: choral.Model, jfk_samples: Int16Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session goes on, and its client is told."""

    tried: list[str] = []

    def resolve(store: ModelStore, name: str) -> Path:
        tried.append(name)
        raise DownloadFailed(f"{name}: no network, /secret/path")

    monkeypatch.setattr(turn_end, "DETECTOR", DetectorLoader())
    monkeypatch.setattr(ModelStore, "resolve", resolve)
    sent: list[Any] = []
    names = ModelNames.of(["tiny.en"])
    deps = SessionDeps(model.transcriber, names, 60.0, NullMetrics(), lambda _: None, sent.append, lambda _: None)
    config = SessionConfig.of_model("tiny.en")
    session = Session(deps, SessionStart(config, is_beta=False))
    session.start()
    update = '{"type": "session.update", "event_id": "e1", "session": {"type": "transcription", "audio": {"input": '
    update += '{"turn_detection": {"type": "semantic_vad", "eagerness": "high"}}}}}'
    session.handle(ClientMessage(update))
    assert [event["type"] for event in sent] == ["session.created", "warning", "session.updated"]
    warning = sent[1]["warning"]
    assert warning["event_id"] == "e1"
    assert "turns end after 400 ms of silence" in warning["message"]
    assert "secret" not in warning["message"]
    session.handle(ClientMessage(update.replace("high", "low")))
    assert tried == ["smart-turn"]  # not again: other sessions wait
    session.end()
