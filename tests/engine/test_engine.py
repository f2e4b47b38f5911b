"""The engine's interface on a fake runner: results, refusals, statistics, observers."""

from __future__ import annotations

import asyncio
import logging

import pytest

from choral.engine.engine import Engine
from choral.engine.engine_loop import StepRecord
from choral.engine.steps import Decode as DecodeStep
from choral.engine.window import AlignParams, Caller, Decoded, DetectLanguageParams, Window
from choral.errors import QueueFull, UsageError, WindowFailed
from fake_runner import SOON_S, FakeRunner, Gate, Plan, audio, engine_on, window

# Waiting for results


def test_results_can_be_waited_for(engine: Engine):
    futures = [engine.submit(window(i)) for i in range(20)]
    assert [future.result(SOON_S) for future in futures] == [Decoded((0, 1, 2), -0.5, 0.1)] * 20
    assert engine.stats.windows == 20
    assert engine.stats.failed == engine.stats.waiting == 0


def test_results_can_be_awaited(engine: Engine, runner: FakeRunner):
    runner.plans[3] = Plan(fault="answer")

    async def ask(number: int) -> Decoded:
        return await engine.submit(window(number))

    async def ask_all() -> list[Decoded | BaseException]:
        return await asyncio.gather(*[ask(i) for i in range(5)], return_exceptions=True)

    found = asyncio.run(ask_all())
    assert isinstance(found.pop(3), WindowFailed)
    assert found == [Decoded((0, 1, 2), -0.5, 0.1)] * 4


def test_alignment_and_language_detection_have_their_own_results(engine: Engine):
    text = AlignParams(text_tokens=(1,), n_frames=10, language="en", task="transcribe")
    assert engine.submit(Window(audio(1), DetectLanguageParams())).result(SOON_S).best == "en"
    assert engine.submit(Window(audio(1), text)).result(SOON_S).token_probs.tolist() == [1.0]
    assert (engine.stats.encoded, engine.stats.cache_hits) == (1, 1)


# Refusing


def test_new_callers_are_refused_when_the_queue_is_full(runner: FakeRunner):
    engine = engine_on(runner, queue_limit=3)
    runner.on_call = gate = Gate("encode")
    known = Caller()
    futures = [engine.submit(window(0), known)]
    assert gate.is_reached.wait(SOON_S)
    futures += [engine.submit(window(i)) for i in range(1, 4)]
    with pytest.raises(QueueFull, match="3 windows"):
        engine.submit(window(4))
    with pytest.raises(QueueFull):
        engine.submit(window(4), Caller())
    futures += [engine.submit(window(i), known) for i in range(5, 9)]
    gate.is_open.set()
    assert all(future.result(SOON_S) for future in futures)
    assert engine.submit(window(10)).result(SOON_S)
    engine.close()


def test_more_beams_than_slots_are_refused(engine: Engine):
    with pytest.raises(UsageError, match=r"9 beams .* 8 slots.*--beam-size"):
        engine.submit(window(1, n_slots=9))
    assert engine.submit(window(1, n_slots=8)).result(SOON_S)


def test_audio_that_cannot_be_encoded_fails_alone(engine: Engine, runner: FakeRunner):
    runner.on_call = gate = Gate("encode")
    futures = [engine.submit(window(0))]
    assert gate.is_reached.wait(SOON_S)
    runner.bad_audio.add(audio(3).key)
    futures += [engine.submit(window(i)) for i in range(1, 6)]
    gate.is_open.set()
    failed = futures.pop(3)
    assert isinstance(failed.exception(SOON_S), WindowFailed)
    assert "out of memory" in str(failed.exception())
    assert [future.result(SOON_S).tokens for future in futures] == [(0, 1, 2)] * 5
    assert engine.stats.failed == 1


# Reporting


def test_the_engine_logs_its_capacity(runner: FakeRunner, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="choral.engine"):
        engine_on(runner).close()
    (record,) = caplog.records
    assert record.getMessage() == (
        "fake on cpu in float32: encoder budget 32,768 frames, at most 21 windows per step; "
        "8 slots of 1 kB; encoder cache 0 kB"
    )


def test_warm_up_runs_the_largest_batches(runner: FakeRunner):
    engine = engine_on(runner, warm_up=True, encoder_budget=6_000)
    assert runner.encoded == [4, 4]
    assert not runner.running
    assert engine._loop.scheduler.costs.decode.is_known
    assert engine.submit(window(1, n_slots=8)).result(SOON_S)
    engine.close()


def test_steps_can_be_observed(engine: Engine):
    records: list[StepRecord] = []
    engine.observe(records.append)
    engine.submit(window(1)).result(SOON_S)
    assert [type(record.step).__name__ for record in records] == ["Encode", "Prefill", "Decode", "Decode"]
    assert all(record.run_s >= 0 and record.scheduling_s >= 0 for record in records)
    stats = engine.stats
    assert (stats.encoder_steps, stats.steps, stats.rows) == (1, 2, 2)
    assert isinstance(records[-1].step, DecodeStep)


def test_the_encoder_cache_can_be_cleared(engine: Engine):
    engine.submit(window(1)).result(SOON_S)
    engine.submit(window(1)).result(SOON_S)
    assert engine.stats.encoded == 1
    assert engine.stats.cache_bytes == 10
    engine.clear_cache()
    engine.submit(window(1)).result(SOON_S)
    assert engine.stats.encoded == 2
