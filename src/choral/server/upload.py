"""The streaming reader of multipart uploads: fields, and files that go to disk beyond a small size.

Bytes are counted as they arrive. A request that is too large is refused before it is read if it declares its length,
and otherwise at the limit; one that stalls or takes too long gets a 408.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePath

from python_multipart.exceptions import FormParserError
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from choral.audio.prep.input_sources import OpenFile
from choral.audio.spool import size_text
from choral.server.api_errors import ApiError
from choral.server.settings import ServerSettings

MAX_FIELD_BYTES = 2**20
MAX_FIELDS, MAX_FILES = 64, 4  # more than exist, so that an unknown field can be named


@dataclass(frozen=True)
class Form:
    fields: tuple[tuple[str, str], ...]  # in order; a name may be repeated
    files: tuple[tuple[str, OpenFile], ...]


@asynccontextmanager
async def read_form(request: Request, settings: ServerSettings) -> AsyncIterator[Form]:
    """The form of a request. Its files are closed on exit, even if the request is cancelled."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > settings.max_upload_bytes:
        raise _too_large(int(length), settings.max_upload_bytes)
    data = await _parse(request, limited_body(request, settings))
    try:
        items = data.multi_items()
        fields = tuple((name, value) for name, value in items if isinstance(value, str))
        files = tuple((name, _open_file(value)) for name, value in items if isinstance(value, UploadFile))
        yield Form(fields, files)
    finally:
        for _, value in data.multi_items():
            if isinstance(value, UploadFile):
                # Not awaited: a second cancellation during the await would leave the file open.
                asyncio.get_running_loop().run_in_executor(None, value.file.close)


async def limited_body(request: Request, settings: ServerSettings) -> AsyncGenerator[bytes, None]:
    """The body in pieces, within the limits of size and time."""
    n_bytes = 0
    deadline_s = time.monotonic() + settings.upload_timeout_s
    body = request.stream()
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            async with asyncio.timeout(min(settings.upload_stall_s, left_s)):
                piece = await anext(body)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            has_stalled = left_s > settings.upload_stall_s
            reason = f"stalled for {settings.upload_stall_s:g} s" if has_stalled else "took too long"
            text = f"the upload {reason}: try again on a faster connection"
            raise ApiError(text, status=408, code="upload_timeout") from error
        n_bytes += len(piece)
        if n_bytes > settings.max_upload_bytes:
            raise _too_large(n_bytes, settings.max_upload_bytes)
        yield piece


def _too_large(size_bytes: int, limit_bytes: int) -> ApiError:
    return ApiError(
        f"the request has {size_text(size_bytes)} ({size_bytes:,} bytes), the limit is {size_text(limit_bytes)} "
        f"({limit_bytes:,} bytes): send a shorter or compressed file",
        status=413,
        param="file",
        code="request_too_large",
    )


class CompleteFormParser(MultiPartParser):
    """Refuses a truncated form, which Starlette's parser accepts: a field that is missing from it may matter."""

    def __init__(self, headers: Headers, body: AsyncGenerator[bytes, None]) -> None:
        super().__init__(
            headers,
            self._until_end(body),
            max_files=MAX_FILES,
            max_fields=MAX_FIELDS,
            max_part_size=MAX_FIELD_BYTES,
        )
        self._has_ended = False

    async def _until_end(self, body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async for piece in body:
            yield piece
        if not self._has_ended:
            raise MultiPartException("it was cut off before its end")

    def on_end(self) -> None:
        self._has_ended = True


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _parse(request: Request, body: AsyncGenerator[bytes, None]) -> FormData:
    kind = content_type(request)
    try:
        if kind == "multipart/form-data":
            return await CompleteFormParser(request.headers, body).parse()
        if kind == "application/x-www-form-urlencoded":
            return await FormParser(request.headers, body).parse()
    except (MultiPartException, FormParserError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise ApiError(f"the form cannot be read ({reason}): send multipart/form-data", code="invalid_form") from error
    except ClientDisconnect as error:
        raise ApiError("the upload was cut off", code="upload_cut_off") from error
    raise ApiError(
        f"the content type is {kind or 'not given'}; send multipart/form-data with the audio in the field `file`",
        status=415,
        code="unsupported_content_type",
    )


def _open_file(upload: UploadFile) -> OpenFile:
    """The name is used in messages only: folders are removed."""
    name = PurePath((upload.filename or "").replace("\\", "/")).name
    return OpenFile(name or "the upload", upload.file)
