"""Realtime sessions on a real server with a real model: formats, turns, event order, concurrency, disconnection."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import numpy as np
import openai
import pytest
from openai.types.realtime import LogProbProperties

from audio.media_files import Int16Samples, encode
from choral.speakers.networks import SpeakerNetworks
from realtime_client import FORMATS, RATE, TRANSCRIPTION, RealtimeClient, connected, encode_audio, silence, words
from serve_process import ServeProcess

JFK = words("And so my fellow Americans ask not what your country can do for you ask what you can do for your country")
PHRASE = "ask not what your country can do for you"
ITEM = ["conversation.item.added", "conversation.item.done"]
BUFFER = "input_audio_buffer"
LONG_SILENCE_VAD = {"type": "server_vad", "silence_duration_ms": 1_500}  # the pauses in this speech are long


def transcribe_file(server: ServeProcess, clip: Int16Samples) -> str:
    files = {"file": ("talk.wav", encode(clip, "wav", "pcm_s16le"))}
    fields = {"model": "whisper-1", "mode": "sequential"}  # as in live sessions, also for long audio
    answer = httpx.post(f"{server.url}/v1/audio/transcriptions", data=fields, files=files, timeout=60)
    return str(answer.json()["text"])


@pytest.mark.parametrize("name", ["pcm16", "pcmu"])  # 24 kHz and A-law are tested below
def test_audio_formats(session: RealtimeClient, jfk_samples: Int16Samples, name: str) -> None:
    session.configure(format=FORMATS[name], turn_detection=None)
    session.append_audio(encode_audio(jfk_samples, name))
    session.commit()
    transcribed = words(session.wait_for_text())
    assert len(transcribed) == len(JFK)
    assert (
        sum(word == said for word, said in zip(transcribed, JFK, strict=True)) >= len(JFK) - 1
    )  # by telephone, "American"
    usage = session.events[-1]["usage"]
    assert usage == {"type": "duration", "seconds": pytest.approx(jfk_samples.size / RATE, abs=0.002)}


def test_committed_audio_gives_the_text_of_a_file(
    realtime_server: ServeProcess, session: RealtimeClient, jfk_samples: Int16Samples, sentences: list[Int16Samples]
) -> None:
    """Longer than a window; the deltas are its segments."""
    clip = np.concatenate([part for sentence in [*sentences, jfk_samples] for part in (sentence, silence(0.4))])
    assert clip.size > 30 * RATE
    session.configure(format=FORMATS["pcm16"], turn_detection=None)
    session.append_audio(clip.tobytes())
    session.commit()
    assert session.wait_for_text() == transcribe_file(realtime_server, clip)
    assert session.event_types.count(f"{TRANSCRIPTION}.delta") > 2
    assert session.event_types[2:7] == [f"{BUFFER}.committed", *ITEM, *[f"{TRANSCRIPTION}.delta"] * 2]


def test_server_vad_ends_turns_of_two_speakers(
    session: RealtimeClient, jfk_samples: Int16Samples, sentences: list[Int16Samples], networks: SpeakerNetworks
) -> None:
    transcription = {"model": "whisper-1", "language": "en", "diarize": True}
    session.configure(format=FORMATS["pcm16"], transcription=transcription, turn_detection=LONG_SILENCE_VAD)
    parts = [silence(1), jfk_samples, silence(2), sentences[1], silence(2), jfk_samples[-3 * RATE :], silence(2)]
    session.append_audio(np.concatenate(parts).tobytes())
    assert words(session.wait_for_text()) == JFK
    assert words(session.wait_for_text())[-2:] == ["young", "man"]
    assert words(session.wait_for_text())[-2:] == ["your", "country"]
    completed = [event for event in session.events if event["type"] == f"{TRANSCRIPTION}.completed"]
    assert [event["speaker"] for event in completed] == ["Speaker 1", "Speaker 2", "Speaker 1"]

    turns = [event for event in session.events if event["type"] == f"{BUFFER}.committed"]
    assert [turn["previous_item_id"] for turn in turns] == [None, *(turn["item_id"] for turn in turns[:-1])]
    for turn in turns:
        item_events = [
            event for event in session.events if turn["item_id"] in (event.get("item_id"), item_id_of(event))
        ]
        kinds = [event["type"] for event in item_events if not event["type"].endswith(".delta")]
        expected = [f"{BUFFER}.speech_started", f"{BUFFER}.speech_stopped", f"{BUFFER}.committed"]
        assert kinds == [*expected, *ITEM, f"{TRANSCRIPTION}.completed"]
    started, stopped = (
        session.events[session.event_types.index(f"{BUFFER}.speech_{what}")] for what in ("started", "stopped")
    )
    assert 600 <= started["audio_start_ms"] <= 1_300
    assert 12_500 <= stopped["audio_end_ms"] <= 14_000
    assert len({event["event_id"] for event in session.events}) == len(session.events)


def item_id_of(event: dict[str, dict[str, str]]) -> str | None:
    return event.get("item", {}).get("id")


def test_deltas_arrive_during_a_turn(session: RealtimeClient, jfk_samples: Int16Samples) -> None:
    """Text sent during the turn is the start of its final text."""
    endless = {"type": "server_vad", "silence_duration_ms": 30_000}
    session.configure(format=FORMATS["pcm16"], turn_detection=endless)
    session.append_audio(jfk_samples.tobytes())
    for _ in range(80):  # at most 20 s of silence, in which the turn is transcribed again
        session.append_audio(silence(0.25).tobytes())
        with suppress(TimeoutError):
            session.receive(0.25)
        if session.event_types[-1] == f"{TRANSCRIPTION}.delta":
            break
    first = words(session.events[-1]["delta"])
    assert f"{BUFFER}.committed" not in session.event_types
    assert first == JFK[: len(first)] != []
    session.commit()
    text = session.wait_for_text()
    assert words(text)[: len(first)] == first
    assert PHRASE in " ".join(words(text))


def test_deltas_arrive_before_the_client_commits(session: RealtimeClient, jfk_samples: Int16Samples) -> None:
    """Without turn detection too, if the audio arrives as it is spoken."""
    session.configure(format=FORMATS["pcm16"], turn_detection=None)
    spoken = np.concatenate([jfk_samples, *[silence(0.25)] * 60])
    for start in range(0, spoken.size, RATE // 4):
        session.append_audio(spoken[start : start + RATE // 4].tobytes())
        with suppress(TimeoutError):
            session.receive(0.2)
        if session.event_types[-1] == f"{TRANSCRIPTION}.delta":
            break
    first = words(session.events[-1]["delta"])
    assert first == JFK[: len(first)] != []
    assert not {f"{BUFFER}.committed", f"{BUFFER}.speech_started"} & set(session.event_types)
    session.append_audio(jfk_samples.tobytes())
    session.commit()
    text = words(session.wait_for_text())
    assert text[: len(first)] == first
    assert text[-3:] == JFK[-3:]


@pytest.mark.parametrize("turns", [None, {"type": "server_vad"}])
def test_silence_and_noise_give_no_text(session: RealtimeClient, turns: dict[str, str] | None) -> None:
    noise = np.random.default_rng(0).normal(0, 300, 3 * RATE).astype(np.int16)
    session.configure(format=FORMATS["pcm16"], turn_detection=turns)
    for clip in (silence(3), noise):
        session.append_audio(clip.tobytes())
        if turns is None:
            session.commit()
            assert session.wait_for_text() == ""
    session.send(f"{BUFFER}.clear")
    session.wait_for(f"{BUFFER}.cleared")
    assert f"{TRANSCRIPTION}.delta" not in session.event_types
    assert turns is None or f"{BUFFER}.speech_started" not in session.event_types


def test_cleared_audio_is_dropped(
    session: RealtimeClient, jfk_samples: Int16Samples, sentences: list[Int16Samples]
) -> None:
    session.configure(format=FORMATS["pcm16"], turn_detection=LONG_SILENCE_VAD)
    session.append_audio(jfk_samples[: 5 * RATE].tobytes())
    session.wait_for(f"{BUFFER}.speech_started")
    session.send(f"{BUFFER}.clear")
    session.wait_for(f"{BUFFER}.cleared")
    session.append_audio(np.concatenate([silence(0.5), sentences[1]]).tobytes())
    session.wait_for(f"{BUFFER}.speech_started")
    session.commit()  # before the detector finds its end
    assert words(session.wait_for_text())[-2:] == ["young", "man"]


def test_concurrent_sessions_get_their_own_text(
    realtime_server: ServeProcess, jfk_samples: Int16Samples, sentences: list[Int16Samples]
) -> None:
    def transcribe(clip: Int16Samples) -> str:
        with connected(realtime_server.url) as client:
            client.configure(format=FORMATS["pcm16"], turn_detection=LONG_SILENCE_VAD)
            client.append_audio(np.concatenate([clip, silence(2)]).tobytes())
            return client.wait_for_text()

    clips = [jfk_samples, *sentences]
    with ThreadPoolExecutor(len(clips)) as threads:
        texts = [" ".join(words(text)) for text in threads.map(transcribe, clips)]
    assert texts[0] == " ".join(JFK)
    for text, part in zip(texts[1:], ("dashwood", "young man", "selfish", "woman", "himself"), strict=True):
        assert part in text


def test_disconnecting_cancels_windows(realtime_server: ServeProcess, sentences: list[Int16Samples]) -> None:
    """Its audio takes two windows: at most the first is done."""

    def n_done() -> float:
        left, failed, cancelled = (
            realtime_server.metric(f"choral_engine_windows{kind}_total") for kind in ("", "_failed", "_cancelled")
        )
        assert failed == 0
        return left - cancelled

    wait_until(lambda: realtime_server.metric("choral_realtime_sessions_open") == 0)
    before = n_done()
    with connected(realtime_server.url) as client:
        client.configure(format=FORMATS["pcm16"], turn_detection=None)
        assert realtime_server.metric("choral_realtime_sessions_open") == 1
        client.append_audio(np.concatenate([*sentences, *sentences]).tobytes())
        client.commit()
        client.wait_for(f"{BUFFER}.committed")
    wait_until(lambda: realtime_server.metric("choral_realtime_sessions_open") == 0)
    assert realtime_server.metric("choral_engine_windows_waiting") == 0
    time.sleep(1.0)  # longer than one window takes
    assert n_done() <= before + 1


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_openai_client(realtime_server: ServeProcess, jfk_samples: Int16Samples) -> None:
    asyncio.run(transcribe_with_openai_client(realtime_server.url, jfk_samples))


async def transcribe_with_openai_client(url: str, jfk_samples: Int16Samples) -> None:
    clip = encode_audio(np.concatenate([jfk_samples, silence(2)]), "pcm24")
    deltas: list[str] = []
    logprobs: list[LogProbProperties] = []
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        client.realtime.connect(model="whisper-1", extra_query={"intent": "transcription"}) as connection,
    ):
        transcription = {"model": "whisper-1", "language": "en"}
        audio = {
            "input": {"format": FORMATS["pcm24"], "transcription": transcription, "turn_detection": LONG_SILENCE_VAD}
        }
        session = {"type": "transcription", "audio": audio, "include": ["item.input_audio_transcription.logprobs"]}
        await connection.session.update(session=session)  # type: ignore[arg-type]
        for start in range(0, len(clip), 48_000):
            await connection.input_audio_buffer.append(audio=base64.b64encode(clip[start : start + 48_000]).decode())
        async for event in connection:
            assert event.type != "error"
            if event.type == f"{TRANSCRIPTION}.delta":
                deltas.append(event.delta or "")
                logprobs += event.logprobs or []
            if event.type == f"{TRANSCRIPTION}.completed":
                break
    assert event.transcript == "".join(deltas)
    assert words(event.transcript) == JFK
    assert event.usage.type == "duration"
    assert event.logprobs == logprobs  # those of all deltas
    assert "".join(token.token for token in logprobs).strip() == event.transcript
    assert all(bytes(token.bytes).decode() == token.token and token.logprob <= 0 for token in logprobs)


def test_beta_dialect(realtime_server: ServeProcess, jfk_samples: Int16Samples) -> None:
    with connected(realtime_server.url, additional_headers={"OpenAI-Beta": "realtime=v1"}) as client:
        assert client.event_types == ["transcription_session.created"]
        assert client.events[0]["session"]["input_audio_format"] == "pcm16"
        transcription = {"model": "whisper-1", "language": "en"}
        session = {
            "input_audio_format": "g711_alaw",
            "input_audio_transcription": transcription,
            "turn_detection": None,
        }
        client.send("transcription_session.update", session=session)
        assert client.wait_for("transcription_session.updated")["session"]["turn_detection"] is None
        client.append_audio(encode_audio(jfk_samples, "pcma"))
        client.commit()
        assert PHRASE in " ".join(words(client.wait_for_text()))
        assert client.event_types[2:4] == [f"{BUFFER}.committed", "conversation.item.created"]


def test_language_is_detected(shared_server: ServeProcess, jfk_samples: Int16Samples) -> None:
    with connected(shared_server.url) as client:
        transcription = {"model": "gpt-transcribe"}
        client.configure(format=FORMATS["pcm16"], turn_detection=LONG_SILENCE_VAD, transcription=transcription)
        client.append_audio(np.concatenate([jfk_samples, silence(2)]).tobytes())
        assert PHRASE in " ".join(words(client.wait_for_text()))
        assert client.events[-1]["languages"] == [{"code": "en"}]
