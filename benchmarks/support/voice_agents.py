"""Speech-to-text services of the voice agent frameworks LiveKit and Pipecat, fed with audio as fast as it is spoken.

The frameworks are imported where they are used: they need not be installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

RATE = 16_000
FRAME_S = 0.05
FRAME_BYTES = round(2 * RATE * FRAME_S)
SILENCE = bytes(2 * RATE * 2)  # two seconds, in which the last turn ends
LAST_WORD = "country"  # of the text: after its second appearance, and some time, nothing is expected
WAIT_S, QUIET_S = 90.0, 3.0


async def speak(samples: bytes) -> AsyncIterator[bytes]:
    audio = samples + SILENCE
    for start in range(0, len(audio), FRAME_BYTES):
        yield audio[start : start + FRAME_BYTES]
        await asyncio.sleep(FRAME_S)


@dataclass
class Transcripts:
    """Complete texts as they arrive."""

    texts: list[str]

    async def wait(self) -> str:
        async with asyncio.timeout(WAIT_S):
            while " ".join(self.texts).count(LAST_WORD) < 2:
                await asyncio.sleep(0.1)
        await asyncio.sleep(QUIET_S)
        return " ".join(self.texts)


def livekit(url: str, samples: bytes, **options: Any) -> str:
    return asyncio.run(_livekit(url, samples, options))


async def _livekit(url: str, samples: bytes, options: dict[str, Any]) -> str:
    from livekit import rtc
    from livekit.agents import stt, utils
    from livekit.plugins import openai

    heard = Transcripts([])
    async with utils.http_context.open():
        service = openai.STT(base_url=f"{url}/v1", api_key="none", **options)
        stream = service.stream()

        async def receive() -> None:
            async for event in stream:
                if event.type == stt.SpeechEventType.FINAL_TRANSCRIPT:
                    heard.texts.append(event.alternatives[0].text)

        receiving = asyncio.create_task(receive())
        async for frame in speak(samples):
            stream.push_frame(rtc.AudioFrame(frame, RATE, 1, len(frame) // 2))
        waiting = asyncio.create_task(heard.wait())
        await asyncio.wait([waiting, receiving], return_when=asyncio.FIRST_COMPLETED)
        if receiving.done():
            receiving.result()  # raises the error that ended the stream
        text = await waiting
        receiving.cancel()
        await stream.aclose()
        await service.aclose()
    return text


def pipecat(url: str, samples: bytes, *, commits: bool, make: Callable[[Any, dict[str, str]], Any]) -> str:
    """`make` gets Pipecat's module of OpenAI's services, and the arguments with the address."""
    return asyncio.run(_pipecat(url, samples, commits, make))


async def _pipecat(url: str, samples: bytes, commits: bool, make: Callable[[Any, dict[str, str]], Any]) -> str:
    from pipecat.frames import frames
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineParams, PipelineWorker
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
    from pipecat.services.openai import stt
    from pipecat.workers.runner import WorkerRunner

    heard, errors = Transcripts([]), list[str]()

    class Sink(FrameProcessor):  # type: ignore[misc]
        async def process_frame(self, frame: Any, direction: FrameDirection) -> None:
            await super().process_frame(frame, direction)
            if isinstance(frame, frames.TranscriptionFrame):
                heard.texts.append(frame.text)
            await self.push_frame(frame, direction)

    address = {"api_key": "none", "base_url": url.replace("http://", "ws://") + "/v1/realtime"}
    worker = PipelineWorker(
        Pipeline([make(stt, address), Sink()]),
        params=PipelineParams(audio_in_sample_rate=RATE),
        enable_rtvi=False,
    )

    @worker.event_handler("on_pipeline_error")  # type: ignore[untyped-decorator]
    async def on_error(worker: Any, frame: Any) -> None:
        errors.append(frame.error)

    async def talk() -> str:
        if commits:
            await worker.queue_frame(frames.VADUserStartedSpeakingFrame())
        async for audio in speak(samples):
            await worker.queue_frame(frames.InputAudioRawFrame(audio=audio, sample_rate=RATE, num_channels=1))
        if commits:
            await worker.queue_frame(frames.VADUserStoppedSpeakingFrame())
        try:
            return await heard.wait()
        finally:
            await worker.queue_frame(frames.EndFrame())

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    text = await talk()
    await running
    if errors:
        raise RuntimeError(errors[0])
    return text
