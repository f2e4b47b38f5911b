"""Which clients of other servers work with this one, unchanged but for address and model?

Starts a server with all dialects, runs every client that is installed against it with a recording of known words, and
prints the rows for the table of docs/compatibility.md: client, version, what was tried, result.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import re
import shutil
import socket
import subprocess
import tempfile
import wave
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from choral.bench.report import json_line
from choral.bench.server_process import ServerProcess
from choral.cli.arguments import Parser
from choral.cli.bench import progress
from choral.cli.console import write_stdout
from choral.cli.shared_flags import machine_arguments
from choral.remote import speech_samples
from support.script import run_script
from support.voice_agents import livekit, pipecat

WORDS = "what your country can do for you"
RAW = {"rate": 16_000, "width": 2, "channels": 1}
CHUNK_BYTES = 6_400
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Target:
    url: str
    wyoming_port: int
    audio: Path  # 16-bit mono wav

    @property
    def samples(self) -> bytes:
        with wave.open(str(self.audio)) as file:
            return bytes(file.readframes(file.getnframes()))


@dataclass(frozen=True)
class ClientTrial:
    client: str
    package: str  # on the package index; empty: a program
    tried: str
    run: Callable[[Target], str]  # returns the text


@dataclass(frozen=True)
class TrialResult:
    client: str
    version: str
    tried: str
    result: str


def openai_client(target: Target) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S)


def openai_transcription(target: Target) -> str:
    with openai_client(target) as client, target.audio.open("rb") as file:
        answer = client.audio.transcriptions.create(
            model="whisper-1",
            file=file,
            language="en",
            response_format="verbose_json",
            timestamp_granularities=["word"],
        )
    assert answer.words, "no words"
    return str(answer.text)


def openai_stream(target: Target) -> str:
    with openai_client(target) as client, target.audio.open("rb") as file:
        events = list(client.audio.transcriptions.create(model="gpt-4o-transcribe", file=file, stream=True))
    assert events[-1].type == "transcript.text.done", events[-1].type
    return str(events[-1].text)


def openai_realtime(target: Target) -> str:
    import base64

    pcm = {"type": "audio/pcm", "rate": 16_000}
    transcription = {"model": "gpt-4o-transcribe", "language": "en"}
    audio_input = {"format": pcm, "transcription": transcription, "turn_detection": None}
    with openai_client(target) as client, client.realtime.connect(extra_query={"intent": "transcription"}) as session:
        session.session.update(session={"type": "transcription", "audio": {"input": audio_input}})
        samples = target.samples
        for start in range(0, len(samples), CHUNK_BYTES):
            audio = base64.b64encode(samples[start : start + CHUNK_BYTES]).decode()
            session.input_audio_buffer.append(audio=audio)
        session.input_audio_buffer.commit()
        for event in session:
            assert event.type != "error", event
            if event.type.endswith("input_audio_transcription.completed"):
                return str(event.transcript)
    raise AssertionError("the session ended without text")


def deepgram_client(target: Target) -> Any:
    from deepgram import DeepgramClient
    from deepgram.environment import DeepgramClientEnvironment

    address = target.url.replace("http://", "ws://")
    environment = DeepgramClientEnvironment(base=target.url, production=address, agent=address, agent_rest=target.url)
    return DeepgramClient(api_key="none", environment=environment)


def deepgram_file(target: Target) -> str:
    answer = deepgram_client(target).listen.v1.media.transcribe_file(
        request=target.audio.read_bytes(), model="nova-3", language="en", utterances=True
    )
    return str(answer.results.channels[0].alternatives[0].transcript)


def deepgram_live(target: Target) -> str:
    texts = []
    with deepgram_client(target).listen.v1.connect(
        model="nova-3", language="en", encoding="linear16", sample_rate="16000", interim_results="true"
    ) as connection:
        for start in range(0, len(samples := target.samples), CHUNK_BYTES):
            connection.send_media(samples[start : start + CHUNK_BYTES])
        connection.send_close_stream()
        while (message := connection.recv()).type != "Metadata":
            if message.type == "Results" and message.is_final:
                texts.append(message.channel.alternatives[0].transcript)
    return " ".join(texts)


def wyoming_client(target: Target) -> str:
    return asyncio.run(_speak_wyoming(target))


async def _speak_wyoming(target: Target) -> str:
    from wyoming.asr import Transcribe, Transcript
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.client import AsyncTcpClient

    async with asyncio.timeout(TIMEOUT_S), AsyncTcpClient("127.0.0.1", target.wyoming_port) as client:
        await client.write_event(Transcribe(language="en").event())
        await client.write_event(AudioStart(**RAW).event())
        for start in range(0, len(samples := target.samples), CHUNK_BYTES):
            await client.write_event(AudioChunk(audio=samples[start : start + CHUNK_BYTES], **RAW).event())
        await client.write_event(AudioStop().event())
        while (event := await client.read_event()) is not None:
            if Transcript.is_type(event.type):
                return str(Transcript.from_event(event).text)
    raise AssertionError("the connection ended without a transcript")


def curl_asr(target: Target) -> str:
    return _curl(f"{target.url}/asr?output=txt&language=en", "-F", f"audio_file=@{target.audio}")


def curl_whisper_cpp(target: Target) -> str:
    return _curl(f"{target.url}/inference", "-F", f"file=@{target.audio}", "-F", "response_format=text")


def _curl(*arguments: str) -> str:
    command = ["curl", "--silent", "--fail-with-body", "--max-time", f"{TIMEOUT_S:.0f}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def speaches_models(target: Target) -> str:
    """The routes that list what is served and loaded have no text: the expected words stand for success."""
    assert httpx.get(f"{target.url}/v1/models").json()["data"], "no models"
    assert httpx.get(f"{target.url}/api/ps").json()["models"], "nothing is loaded"
    return WORDS


def livekit_trial(tried: str, **options: Any) -> ClientTrial:
    def transcribe(target: Target) -> str:
        return livekit(target.url, target.samples, use_realtime=True, **options)

    return ClientTrial("LiveKit Agents, `openai.STT`", "livekit-plugins-openai", tried, transcribe)


def pipecat_trial(tried: str, *, turns: Any = False, **settings: Any) -> ClientTrial:
    """Without `turns`, the service commits when its pipeline says so."""

    def make(stt: Any, address: dict[str, str]) -> Any:
        service = stt.OpenAIRealtimeSTTService
        return service(**address, turn_detection=turns, settings=service.Settings(**settings))

    def transcribe(target: Target) -> str:
        return pipecat(target.url, target.samples, commits=turns is False, make=make)

    return ClientTrial("Pipecat, `OpenAIRealtimeSTTService`", "pipecat-ai", tried, transcribe)


SEMANTIC = {"type": "semantic_vad", "eagerness": "high"}
TRIALS = (
    ClientTrial("openai (Python)", "openai", "`transcriptions.create` with words", openai_transcription),
    ClientTrial("openai (Python)", "openai", "`transcriptions.create(stream=True)`", openai_stream),
    ClientTrial("openai (Python)", "openai", "`realtime.connect`, audio and commit", openai_realtime),
    ClientTrial("deepgram-sdk (Python)", "deepgram-sdk", "`listen.v1.media.transcribe_file`", deepgram_file),
    ClientTrial("deepgram-sdk (Python)", "deepgram-sdk", "`listen.v1.connect`, interim results", deepgram_live),
    ClientTrial("wyoming (Python)", "wyoming", "`AsyncTcpClient`: transcribe, audio, transcript", wyoming_client),
    livekit_trial("defaults"),
    livekit_trial("noise reduction", noise_reduction_type="near_field"),
    livekit_trial(
        "semantic VAD, languages, keywords",
        model="gpt-transcribe",
        language=["en", "de"],
        keywords=["Americans"],
        turn_detection=SEMANTIC,
    ),
    livekit_trial("`gpt-realtime-whisper`, which it commits itself", model="gpt-realtime-whisper"),
    pipecat_trial("defaults"),
    pipecat_trial("noise reduction, delay", noise_reduction="near_field", delay="low"),
    pipecat_trial("server VAD", turns={"type": "server_vad"}, model="gpt-transcribe"),
    pipecat_trial("semantic VAD, noise reduction", turns=SEMANTIC, model="gpt-transcribe", noise_reduction="far_field"),
    ClientTrial("curl", "", "whisper-asr-webservice's `/asr`", curl_asr),
    ClientTrial("curl", "", "whisper.cpp's `/inference`", curl_whisper_cpp),
    ClientTrial("httpx (Python)", "httpx", "speaches' `/v1/models` and `/api/ps`", speaches_models),
)


def try_client(trial: ClientTrial, target: Target) -> TrialResult:
    version = _version(trial)
    if version is None:
        return TrialResult(trial.client, "", trial.tried, "not installed here")
    try:
        text = trial.run(target)
    except Exception as error:  # whatever a client raises is its result
        return TrialResult(trial.client, version, trial.tried, f"fails: {type(error).__name__}: {error}"[:200])
    is_right = WORDS in re.sub(r"[^a-z ]", "", text.lower())
    return TrialResult(trial.client, version, trial.tried, "works" if is_right else f"wrong text: {text[:100]!r}")


def _version(trial: ClientTrial) -> str | None:
    """Of what is installed; None if it is not."""
    if not trial.package:
        found = shutil.which(trial.client)
        return found and subprocess.run([found, "--version"], capture_output=True, text=True).stdout.split()[1]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(trial.package)
    return None


def markdown_table(results: list[TrialResult]) -> str:
    rows = [("client", "version", "what was tried", "result"), ("---",) * 4]
    rows += [(each.client, each.version, each.tried, each.result) for each in results]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


def add_arguments(parser: Parser) -> None:
    parser.add_argument("audio", nargs="?", type=Path, metavar="AUDIO", help="16-bit mono wav with Kennedy's sentence")


def run(arguments: argparse.Namespace) -> int:
    audio = arguments.audio or speech_samples.jfk().path
    port = free_port()
    flags = [*machine_arguments(arguments), "--dialects=all", f"--wyoming-port={port}"]
    report = progress(arguments)
    results = []
    with tempfile.TemporaryDirectory(prefix="choral-bench-") as folder, ServerProcess(flags, Path(folder)) as server:
        target = Target(server.url, port, audio)
        for trial in TRIALS:
            report(f"{trial.client}: {trial.tried}")
            results.append(try_client(trial, target))
    write_stdout(markdown_table(results))
    write_stdout(json_line("compatibility", {"results": [asdict(each) for each in results]}) + "\n")
    return 0 if all(each.result in ("works", "not installed here") for each in results) else 1


if __name__ == "__main__":
    run_script(__doc__, add_arguments, run, usage="[AUDIO] [options]", epilog="exit codes: 0 all work, 1 otherwise")
