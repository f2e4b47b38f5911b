"""The upload reader closes its files whatever happens to the request."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import IO

import pytest
from starlette.requests import Request
from starlette.types import Message

from choral.errors import StorageError
from choral.server.admission import UploadSlot
from choral.server.api_errors import ApiError
from choral.server.settings import ServerSettings
from choral.server.upload import read_form

HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
ON_DISK_BYTES = 3 * 2**20
LIMIT_S = 5.0


def request_of(*pieces: bytes) -> Request:
    """A form that arrives in these pieces; then the client disconnects."""
    messages: list[Message] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages[-1]["more_body"] = not pieces[-1].endswith(b"--x--\r\n")
    coming = iter([*messages, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(coming)

    headers = [(b"content-type", b"multipart/form-data; boundary=x")]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


async def until_closed(file: IO[bytes]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not file.closed:
            await asyncio.sleep(0.01)


def test_files_are_closed_when_cancelled_during_cleanup() -> None:
    async def check() -> None:
        files: list[IO[bytes]] = []

        async def work() -> None:
            async with read_form(
                request_of(HEAD, bytes(ON_DISK_BYTES), b"\r\n--x--\r\n"), ServerSettings(), UploadSlot(0)
            ) as form:
                files.append(form.files[0][1].file)
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        while not files:
            await asyncio.sleep(0.01)
        assert not files[0].closed
        while not task.done():
            task.cancel()  # wherever it is, its end included
            await asyncio.sleep(0)
        await until_closed(files[0])

    asyncio.run(check())


def test_truncated_upload_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    made: list[IO[bytes]] = []
    really_make = tempfile.SpooledTemporaryFile

    def make(*given: object, **named: object) -> object:
        made.append(really_make(*given, **named))  # type: ignore[call-overload]
        return made[-1]

    monkeypatch.setattr("starlette.formparsers.SpooledTemporaryFile", make)

    async def check() -> None:
        with pytest.raises(ApiError, match="cut off"):
            async with read_form(request_of(HEAD, bytes(ON_DISK_BYTES)), ServerSettings(), UploadSlot(0)):
                raise AssertionError("it has no end")
        assert made
        assert made[0].closed

    asyncio.run(check())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_full_disk_is_a_storage_error(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)

    async def check() -> None:
        with pytest.raises(StorageError, match="TMPDIR"):
            async with read_form(
                request_of(HEAD, bytes(ON_DISK_BYTES), b"\r\n--x--\r\n"), ServerSettings(), UploadSlot(0)
            ):
                raise AssertionError("it has no file")

    asyncio.run(check())


def test_evicted_upload_is_a_408() -> None:
    async def check() -> None:
        slot = UploadSlot(0)

        async def receive() -> Message:
            asyncio.get_running_loop().call_soon(slot.evict)
            await asyncio.sleep(60)
            raise AssertionError

        request = request_of(b"")
        request._receive = receive
        with pytest.raises(ApiError, match="slower than 16,384 bytes/s") as refused:
            async with read_form(request, ServerSettings(), slot):
                raise AssertionError
        assert refused.value.http_status == 408

    asyncio.run(check())
