"""A transcript as server-sent events: text as it becomes final, then the whole of it.

The answer begins with the first text, so that what is wrong with a request is still told by its status. When the client
goes away, or the server is shut down, the work for it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from choral.common.aio import cancel_tasks
from choral.errors import ChoralError
from choral.server.api_errors import error_fields, to_api_error
from choral.server.disconnect import ClientClosedRequest, cancel_on_disconnect
from choral.server.responses import END_OF_EVENTS, TextAccumulator, delta_event, done_event, event
from choral.types import Segment, Token, Transcript

Work = Callable[[Callable[[Segment], None]], Coroutine[Any, Any, Transcript]]
Spell = Callable[[Segment], list[Token]]
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies hold nothing back


class Streaming:
    """A transcription under way, whose segments are taken as they come; events have tokens if it is told to spell."""

    def __init__(self, work: Work, spell: Spell | None) -> None:
        self._spell = spell
        self._tokens: list[Token] = []
        self._n_told = 0  # of the tokens
        self._segments: asyncio.Queue[Segment | None] = asyncio.Queue()
        self._text = TextAccumulator()
        self._task = asyncio.create_task(work(self._segments.put_nowait))
        self._task.add_done_callback(lambda task: self._segments.put_nowait(None))
        self._first: bytes | None = None

    async def begin(self) -> None:
        """Waits for the first text, or the end; a failure before that is raised."""
        try:
            while (segment := await self._segments.get()) is not None:
                self._first = self._event(segment)
                if self._first is not None:
                    return
            self._task.result()
            self._segments.put_nowait(None)
        except BaseException:
            await self.end()
            raise

    async def events(self) -> AsyncIterator[bytes]:
        if self._first is not None:
            yield self._first
        while (segment := await self._segments.get()) is not None:
            if (told := self._event(segment)) is not None:
                yield told
        try:
            yield done_event(self._task.result(), self._text.text, self._tokens if self._spell else None)
        except ChoralError as error:
            yield event(error_fields(to_api_error(error)))
        yield END_OF_EVENTS

    def _event(self, segment: Segment) -> bytes | None:
        """None where the segment is blank; its tokens then go with the next."""
        if self._spell is not None:
            self._tokens += self._spell(segment)
        delta = self._text.add(segment)
        if not delta:
            return None
        told, self._n_told = self._tokens[self._n_told :], len(self._tokens)
        return delta_event(delta, told if self._spell else None)

    async def end(self) -> None:
        await cancel_tasks([self._task])


class EventStream(Response):
    media_type = "text/event-stream"

    def __init__(self, streaming: Streaming) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._streaming = streaming

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await cancel_on_disconnect(receive, self._send_all(send))
        except ClientClosedRequest:
            return
        finally:
            await self._streaming.end()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._streaming.events():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
