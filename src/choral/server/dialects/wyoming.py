"""Wyoming, the protocol of Home Assistant's voice assistants: a TCP port that takes audio and returns its transcript.

A connection counts as a live session: their number, the time without a message and the largest message are limited
as theirs, and a shutdown lets it finish. Audio is decoded while one speaks. It also goes to a temporary file, which is
transcribed like an upload if a live session cannot take it. The protocol has no keys, so a server with keys does not
offer it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from socket import socket
from tempfile import TemporaryFile
from typing import IO, Annotated, Any

from pydantic import Field

from choral import __version__
from choral.audio.spool import cannot_store
from choral.common.aio import cancel_tasks, close_in_thread
from choral.errors import ChoralError
from choral.model.languages import CODES
from choral.options import TranscribeOptions
from choral.server.api_errors import ApiError, to_api_error
from choral.server.decoding_fields import MAX_KEYWORDS, Keyword
from choral.server.dialects.dialect_request import LenientFields
from choral.server.dialects.headerless import RawFormat
from choral.server.dialects.live_utterance import ClientLeft, LiveUtterance
from choral.server.dialects.wyoming_events import MAX_LINE_BYTES, WyomingError, WyomingEvent, read_event
from choral.server.forms import SpokenLanguage, to_options, validate
from choral.server.responses import TextAccumulator
from choral.server.service import Service
from choral.server.speech_form import Text
from choral.serving.input_sources import OpenFile
from choral.transcript import Segment, Transcript

log = logging.getLogger("choral.server")
PROJECT = {"name": "Choral", "url": ""}
Terms = Annotated[list[Keyword] | None, Field(max_length=MAX_KEYWORDS)]


class TranscribeFields(LenientFields):
    name: Text | None = Field(None, description="of the model; unknown ones are the default model")
    language: SpokenLanguage = None
    transcript_names: Terms = None
    transcript_terms: Terms = None

    def options(self) -> TranscribeOptions:
        hotwords = (*(self.transcript_names or ()), *(self.transcript_terms or ()))
        return to_options(language=self.language, hotwords=hotwords or None)


class AudioFields(LenientFields):
    rate: int = Field(16_000, ge=1_000, le=192_000)
    width: int = Field(2, ge=2, le=2, description="bytes per sample")
    channels: int = Field(1, ge=1, le=8)


class WyomingConnection:
    def __init__(self, service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._service, self._settings = service, service.settings
        self._reader, self._writer = reader, writer
        self._next: asyncio.Task[WyomingEvent | None] | None = None  # read ahead while a transcription runs
        self._is_draining = asyncio.Event()
        self._options = TranscribeOptions()
        self._model: str | None = None
        self._raw = RawFormat()
        self._audio: IO[bytes] | None = None
        self._live: LiveUtterance | None = None
        self._chunks: list[str] = []  # of the transcript, that were sent
        self._n_bytes = 0

    def drain(self) -> None:
        self._is_draining.set()

    async def run(self) -> None:
        """Serve the connection until either side ends it."""
        try:
            while (event := await self._receive()) is not None:
                await self._handle(event)
        except ClientLeft:
            pass
        except WyomingError as error:
            await self.send("error", text=str(error), code="invalid_event")
        except ChoralError as error:
            api_error = to_api_error(error)
            await self.send("error", text=str(api_error), code=api_error.code)
        finally:
            await self._discard_audio()
            if self._next is not None:
                await cancel_tasks([self._next])

    async def _receive(self) -> WyomingEvent | None:
        """The next event; None at the end, after the idle timeout, and when the server shuts down."""
        reading, self._next = self._next or self._read_ahead(), None
        draining = asyncio.create_task(self._is_draining.wait())
        try:
            idle_s = self._settings.realtime_idle_s
            await asyncio.wait([reading, draining], timeout=idle_s, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            await cancel_tasks([reading, draining])

    def _read_ahead(self) -> asyncio.Task[WyomingEvent | None]:
        return asyncio.create_task(read_event(self._reader, self._settings.realtime_message_bytes))

    async def _handle(self, event: WyomingEvent) -> None:
        match event.type:
            case "describe":
                await self.send("info", **_info(self._service))
            case "ping":
                await self.send("pong", text=event.data.get("text"))
            case "transcribe":
                fields = validate(TranscribeFields, event.data)
                self._options = fields.options()
                self._model = fields.name if fields.name in self._service.names.targets else None
                self._service.require_supported(self._options, task_param="task", model=self._model)
            case "audio-start":
                await self._start_audio(validate(AudioFields, event.data))
            case "audio-chunk":
                await self._append(event)
            case "audio-stop":
                await self._transcribe()
            case _:
                pass  # the protocol grows: unknown events are dropped

    async def _start_audio(self, fields: AudioFields) -> None:
        await self._discard_audio()
        self._service.requests.require_capacity()
        self._raw = RawFormat("linear16", fields.rate, fields.channels)
        try:
            self._audio = TemporaryFile()  # noqa: SIM115  closed in `_discard_audio`
            self._audio.write(self._raw.wav_header(0))
        except OSError as error:
            raise cannot_store(error) from error
        if LiveUtterance.can_take(fields.rate, fields.channels):
            self._live = LiveUtterance(self._service, self._model, self._options, fields.rate, self._send_chunk)

    async def _append(self, event: WyomingEvent) -> None:
        if self._audio is None:
            await self._start_audio(validate(AudioFields, event.data))
        assert self._audio is not None
        self._n_bytes += len(event.payload)
        too_long = self._n_bytes / self._raw.bytes_per_s > self._settings.max_audio_s
        if self._n_bytes > self._settings.max_upload_bytes or too_long:
            raise ApiError("the audio is too long for this server", status=413, code="request_too_large")
        try:
            self._audio.write(event.payload)
        except OSError as error:
            raise cannot_store(error) from error
        if self._live is not None and event.payload:
            await self._live.append(event.payload)

    async def _transcribe(self) -> None:
        """The text in chunks as it is confirmed, and as a whole for clients that do not know these."""
        text, language = "", self._options.language
        if self._audio is not None and self._n_bytes:
            live = None if self._live is None else await self._unless_left(self._live.finish())
            if live is not None:
                text = live
            elif self._chunks:
                raise ApiError("the transcription failed: try again", status=500, code="transcription_failed")
            else:
                text, language = await self._transcribe_file(self._audio)
        if not self._chunks:
            await self.send("transcript-start", **self._language_fields())
        await self._discard_audio()
        await self.send("transcript", text=text, **({} if language is None else {"language": language}))
        await self.send("transcript-stop")

    async def _transcribe_file(self, file: IO[bytes]) -> tuple[str, str]:
        """The text and its language."""
        text = TextAccumulator()
        chunks: asyncio.Queue[str | None] = asyncio.Queue()

        def add(segment: Segment) -> None:
            chunks.put_nowait(text.add(segment.text))

        file.seek(0)
        file.write(self._raw.wav_header(self._n_bytes))
        file.flush()
        audio = OpenFile("the audio.wav", file)
        work = self._service.transcribe(audio, self._options, model=self._model, client_waits=True, on_segment=add)
        sender = asyncio.create_task(self._send_chunks(chunks))
        try:
            transcript: Transcript = await self._unless_left(work)
            chunks.put_nowait(None)
            await sender
        finally:
            await cancel_tasks([sender])
        return text.text, transcript.language

    def _language_fields(self) -> dict[str, str]:
        return {} if self._options.language is None else {"language": self._options.language}

    async def _send_chunks(self, chunks: asyncio.Queue[str | None]) -> None:
        while (chunk := await chunks.get()) is not None:
            if chunk:
                await self._send_chunk(chunk)

    async def _send_chunk(self, text: str) -> None:
        if not self._chunks:
            await self.send("transcript-start", **self._language_fields())
        self._chunks.append(text)
        await self.send("transcript-chunk", text=text)

    async def _unless_left(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of the work, which is cancelled if the client leaves; an event that comes early is kept."""
        working = asyncio.create_task(work)
        self._next = self._read_ahead()
        try:
            await asyncio.wait([working, self._next], return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and self._next.result() is None:
                raise ClientLeft
            return await working
        finally:
            await cancel_tasks([working])

    async def send(self, kind: str, **data: Any) -> None:
        self._writer.write(WyomingEvent(kind, data).encode())
        try:
            async with asyncio.timeout(self._settings.realtime_send_s):
                await self._writer.drain()
        except (TimeoutError, ConnectionError) as error:
            self._writer.transport.abort()
            raise ClientLeft from error

    async def _discard_audio(self) -> None:
        live, self._live = self._live, None
        if self._audio is not None:
            close_in_thread(self._audio)
        self._audio, self._n_bytes = None, 0
        if live is not None:
            await live.cancel()
        self._chunks.clear()


def _info(service: Service) -> dict[str, Any]:
    about = {"attribution": PROJECT, "installed": True, "version": __version__}
    infos = [entry.info for entry in service.models.entries]
    models = [
        {
            "name": info.id,
            "description": info.id,
            "languages": list(CODES) if info.is_multilingual else ["en"],
            **about,
        }
        for info in infos
    ]
    program = {
        "name": "choral",
        "description": "Speech to text with Whisper models",
        "models": models,
        "supports_transcript_streaming": True,
        **about,
    }
    return {"asr": [program], "tts": [], "handle": [], "intent": [], "wake": [], "mic": [], "snd": []}


@asynccontextmanager
async def serve_wyoming(service: Service, bound: socket) -> AsyncIterator[None]:
    """Accept connections on this socket until the exit, which ends those that a drain has not."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        connection = WyomingConnection(service, reader, writer)
        try:
            service.realtime.admission.require_capacity()
            with service.realtime.register(connection.drain):
                await connection.run()
        except ChoralError as error:
            with contextlib.suppress(ClientLeft):
                await connection.send("error", text=str(error), code=to_api_error(error).code)
        except ClientLeft:
            pass
        except Exception:  # a bug ends the connection, not the server
            log.exception("internal error in a Wyoming connection: please report it")
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(handle, sock=bound, limit=MAX_LINE_BYTES)
    try:
        yield
    finally:
        server.close()
        await cancel_tasks(tasks)
