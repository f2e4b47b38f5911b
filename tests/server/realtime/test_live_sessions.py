"""Live sessions on a real server with a real model: formats, turns, order of events, many at once, and their end."""

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

from audio.media_files import Sound, encode
from live_client import FORMATS, RATE, TRANSCRIPTION, LiveClient, joined, silence, spoken, words
from live_server import LiveServer

JFK = words("And so my fellow Americans ask not what your country can do for you ask what you can do for your country")
PHRASE = "ask not what your country can do for you"
ITEM = ["conversation.item.added", "conversation.item.done"]
BUFFER = "input_audio_buffer"
PATIENT = {"type": "server_vad", "silence_duration_ms": 1_500}  # the pauses in this speech are long


def plain_text(server: LiveServer, sound: Sound) -> str:
    files = {"file": ("talk.wav", encode(sound, "wav", "pcm_s16le"))}
    answer = httpx.post(f"{server.url}/v1/audio/transcriptions", data={"model": "whisper-1"}, files=files, timeout=60)
    return str(answer.json()["text"])


@pytest.mark.parametrize("name", ["pcm16", "pcmu"])  # those of 24 kHz and of A-law are heard below
def test_formats_are_heard(session: LiveClient, jfk_sound: Sound, name: str) -> None:
    session.configure(format=FORMATS[name], turn_detection=None)
    session.say(spoken(jfk_sound, name))
    session.commit()
    heard = words(session.completed())
    assert len(heard) == len(JFK)
    assert sum(word == said for word, said in zip(heard, JFK, strict=True)) >= len(JFK) - 1  # by telephone, "American"
    usage = session.events[-1]["usage"]
    assert usage == {"type": "duration", "seconds": pytest.approx(jfk_sound.size / RATE, abs=0.002)}


def test_what_is_committed_reads_as_a_file_would(
    live_server: LiveServer, session: LiveClient, jfk_sound: Sound, sentences: list[Sound]
) -> None:
    """Longer than a window; the deltas are its segments."""
    sound = np.concatenate([part for sentence in [*sentences, jfk_sound] for part in (sentence, silence(0.4))])
    assert sound.size > 30 * RATE
    session.configure(format=FORMATS["pcm16"], turn_detection=None)
    session.say(sound.tobytes())
    session.commit()
    assert session.completed() == plain_text(live_server, sound)
    assert session.kinds.count(f"{TRANSCRIPTION}.delta") > 2
    assert session.kinds[2:7] == [f"{BUFFER}.committed", *ITEM, *[f"{TRANSCRIPTION}.delta"] * 2]


def test_the_detector_cuts_turns(session: LiveClient, jfk_sound: Sound, sentences: list[Sound]) -> None:
    hints = {"model": "whisper-1", "language": "en"}
    session.configure(format=FORMATS["pcm16"], transcription=hints, turn_detection=PATIENT)
    parts = [silence(1), jfk_sound, silence(2), sentences[1], silence(2)]
    session.say(np.concatenate(parts).tobytes())
    assert words(session.completed()) == JFK
    assert words(session.completed())[-2:] == ["young", "man"]

    turns = [event for event in session.events if event["type"] == f"{BUFFER}.committed"]
    assert [turn["previous_item_id"] for turn in turns] == [None, turns[0]["item_id"]]
    for turn in turns:
        own = [event for event in session.events if turn["item_id"] in (event.get("item_id"), item_of(event))]
        kinds = [event["type"] for event in own if not event["type"].endswith(".delta")]
        heard = [f"{BUFFER}.speech_started", f"{BUFFER}.speech_stopped", f"{BUFFER}.committed"]
        assert kinds == [*heard, *ITEM, f"{TRANSCRIPTION}.completed"]
    started, stopped = (
        session.events[session.kinds.index(f"{BUFFER}.speech_{what}")] for what in ("started", "stopped")
    )
    assert 600 <= started["audio_start_ms"] <= 1_300
    assert 12_500 <= stopped["audio_end_ms"] <= 14_000
    assert len({event["event_id"] for event in session.events}) == len(session.events)


def item_of(event: dict[str, dict[str, str]]) -> str | None:
    return event.get("item", {}).get("id")


def test_text_comes_while_it_is_spoken(session: LiveClient, jfk_sound: Sound) -> None:
    """Words are there while the turn goes on, and stay."""
    endless = {"type": "server_vad", "silence_duration_ms": 30_000}
    session.configure(format=FORMATS["pcm16"], turn_detection=endless)
    session.say(jfk_sound.tobytes())
    for _ in range(80):  # a pause of 20 s at most: what was said is heard again as it goes on
        session.say(silence(0.25).tobytes())
        with suppress(TimeoutError):
            session.receive(0.25)
        if session.kinds[-1] == f"{TRANSCRIPTION}.delta":
            break
    first = words(session.events[-1]["delta"])
    assert f"{BUFFER}.committed" not in session.kinds
    assert first == JFK[: len(first)] != []
    session.commit()
    text = session.completed()
    assert words(text)[: len(first)] == first
    assert PHRASE in " ".join(words(text))


@pytest.mark.parametrize("turns", [None, {"type": "server_vad"}])
def test_silence_and_noise_give_no_text(session: LiveClient, turns: dict[str, str] | None) -> None:
    noise = np.random.default_rng(0).normal(0, 300, 3 * RATE).astype(np.int16)
    session.configure(format=FORMATS["pcm16"], turn_detection=turns)
    for sound in (silence(3), noise):
        session.say(sound.tobytes())
        if turns is None:
            session.commit()
            assert session.completed() == ""
    session.send(f"{BUFFER}.clear")
    session.until(f"{BUFFER}.cleared")
    assert f"{TRANSCRIPTION}.delta" not in session.kinds
    assert turns is None or f"{BUFFER}.speech_started" not in session.kinds


def test_what_is_cleared_is_forgotten(session: LiveClient, jfk_sound: Sound, sentences: list[Sound]) -> None:
    session.configure(format=FORMATS["pcm16"], turn_detection=PATIENT)
    session.say(jfk_sound[: 5 * RATE].tobytes())
    session.until(f"{BUFFER}.speech_started")
    session.send(f"{BUFFER}.clear")
    session.until(f"{BUFFER}.cleared")
    session.say(np.concatenate([silence(0.5), sentences[1]]).tobytes())
    session.until(f"{BUFFER}.speech_started")
    session.commit()  # before the detector has heard its end
    assert words(session.completed())[-2:] == ["young", "man"]


def test_sessions_do_not_mix(live_server: LiveServer, jfk_sound: Sound, sentences: list[Sound]) -> None:
    def speak(sound: Sound) -> str:
        with joined(live_server.url) as client:
            client.configure(format=FORMATS["pcm16"], turn_detection=PATIENT)
            client.say(np.concatenate([sound, silence(2)]).tobytes())
            return client.completed()

    sounds = [jfk_sound, *sentences]
    with ThreadPoolExecutor(len(sounds)) as threads:
        texts = [" ".join(words(text)) for text in threads.map(speak, sounds)]
    assert texts[0] == " ".join(JFK)
    for text, part in zip(texts[1:], ("dashwood", "young man", "selfish", "woman", "himself"), strict=True):
        assert part in text


def test_a_client_that_goes_away_frees_its_windows(live_server: LiveServer, sentences: list[Sound]) -> None:
    """Of two windows that its audio takes, at most the first is done."""

    def n_done() -> float:
        return live_server.metric("choral_engine_windows_total") - live_server.metric(
            "choral_engine_windows_failed_total"
        )

    wait_for(lambda: live_server.metric("choral_realtime_sessions_open") == 0)
    before = n_done()
    with joined(live_server.url) as client:
        client.configure(format=FORMATS["pcm16"], turn_detection=None)
        assert live_server.metric("choral_realtime_sessions_open") == 1
        client.say(np.concatenate([*sentences, *sentences]).tobytes())
        client.commit()
        client.until(f"{BUFFER}.committed")
    wait_for(lambda: live_server.metric("choral_realtime_sessions_open") == 0)
    assert live_server.metric("choral_engine_windows_waiting") == 0
    time.sleep(1.0)  # longer than a window takes
    assert n_done() <= before + 1


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_openais_own_client(live_server: LiveServer, jfk_sound: Sound) -> None:
    asyncio.run(speak_with_openais_client(live_server.url, jfk_sound))


async def speak_with_openais_client(url: str, jfk_sound: Sound) -> None:
    sound = spoken(np.concatenate([jfk_sound, silence(2)]), "pcm24")
    heard: list[str] = []
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        client.realtime.connect(model="whisper-1", extra_query={"intent": "transcription"}) as connection,
    ):
        transcription = {"model": "whisper-1", "language": "en"}
        audio = {"input": {"format": FORMATS["pcm24"], "transcription": transcription, "turn_detection": PATIENT}}
        await connection.session.update(session={"type": "transcription", "audio": audio})  # type: ignore[typeddict-item]
        for start in range(0, len(sound), 48_000):
            await connection.input_audio_buffer.append(audio=base64.b64encode(sound[start : start + 48_000]).decode())
        async for event in connection:
            assert event.type != "error"
            if event.type == f"{TRANSCRIPTION}.delta":
                heard.append(event.delta or "")
            if event.type == f"{TRANSCRIPTION}.completed":
                break
    assert event.transcript == "".join(heard)
    assert words(event.transcript) == JFK
    assert event.usage.type == "duration"


def test_the_older_shape(live_server: LiveServer, jfk_sound: Sound) -> None:
    with joined(live_server.url, additional_headers={"OpenAI-Beta": "realtime=v1"}) as client:
        assert client.kinds == ["transcription_session.created"]
        assert client.events[0]["session"]["input_audio_format"] == "pcm16"
        hints = {"model": "whisper-1", "language": "en"}
        session = {"input_audio_format": "g711_alaw", "input_audio_transcription": hints, "turn_detection": None}
        client.send("transcription_session.update", session=session)
        assert client.until("transcription_session.updated")["session"]["turn_detection"] is None
        client.say(spoken(jfk_sound, "pcma"))
        client.commit()
        assert PHRASE in " ".join(words(client.completed()))
        assert client.kinds[2:4] == [f"{BUFFER}.committed", "conversation.item.created"]


def test_a_language_is_heard_where_none_is_told(live: LiveServer, jfk_sound: Sound) -> None:
    with joined(live.url) as client:
        client.configure(format=FORMATS["pcm16"], turn_detection=PATIENT)
        client.say(np.concatenate([jfk_sound, silence(2)]).tobytes())
        assert PHRASE in " ".join(words(client.completed()))
