"""The form of a request: its fields, and its file, which lies on disk beyond a small size.

What comes is counted while it comes. A request that is too large is refused before it is read where it says its length,
and otherwise as soon as it is; one that stands still or takes too long is given up.
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

from choral.audio.prep.inputs import OpenFile
from choral.audio.spool import size_text
from choral.server.api_errors import ApiError
from choral.server.settings import ServerSettings

FIELDS_BYTES = 2**20  # largest value of a field
FIELDS, FILES = 64, 4  # more than there are, so that the field that is wrong can be named


@dataclass(frozen=True)
class Form:
    fields: tuple[tuple[str, str], ...]  # in their order; a name may come several times
    files: tuple[tuple[str, OpenFile], ...]


@asynccontextmanager
async def read_form(request: Request, settings: ServerSettings) -> AsyncIterator[Form]:
    """The files are closed at the end, whatever it is."""
    require_size(request.headers.get("content-length"), settings.max_upload_bytes)
    data = await _parse(request, counted(request, settings))
    try:
        items = data.multi_items()
        fields = tuple((name, value) for name, value in items if isinstance(value, str))
        files = tuple((name, _open_file(value)) for name, value in items if isinstance(value, UploadFile))
        yield Form(fields, files)
    finally:
        for _, value in data.multi_items():
            if isinstance(value, UploadFile):
                # Not awaited: a request that is cancelled once more on its way out would leave its file open.
                asyncio.get_running_loop().run_in_executor(None, value.file.close)


def require_size(content_length: str | None, limit_bytes: int) -> None:
    if content_length is not None and content_length.isdecimal() and int(content_length) > limit_bytes:
        raise too_large(int(content_length), limit_bytes)


def too_large(size_bytes: int, limit_bytes: int) -> ApiError:
    return ApiError(
        f"the request has {size_text(size_bytes)} ({size_bytes:,} bytes), the limit is {size_text(limit_bytes)} "
        f"({limit_bytes:,} bytes): send a shorter or compressed file",
        status=413,
        param="file",
        code="request_too_large",
    )


async def counted(request: Request, settings: ServerSettings) -> AsyncGenerator[bytes, None]:
    """The body as it comes, within the limits of size and time."""
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
            raise _too_slow(settings, has_stalled=left_s > settings.upload_stall_s) from error
        n_bytes += len(piece)
        if n_bytes > settings.max_upload_bytes:
            raise too_large(n_bytes, settings.max_upload_bytes)
        yield piece


def _too_slow(settings: ServerSettings, *, has_stalled: bool) -> ApiError:
    limit = f"stood still for {settings.upload_stall_s:g} s" if has_stalled else "did not end in time"
    return ApiError(f"the upload {limit}: send it again, or from nearer", status=408, code="upload_timeout")


class WholeForm(MultiPartParser):
    """A form that does not come to its end is refused: a field that is missing from it might have mattered."""

    def __init__(self, headers: Headers, body: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers, self._whole(body), max_files=FILES, max_fields=FIELDS, max_part_size=FIELDS_BYTES)
        self._has_ended = False

    async def _whole(self, body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async for piece in body:
            yield piece
        if not self._has_ended:
            raise MultiPartException("it was cut off before its end")

    def on_end(self) -> None:
        self._has_ended = True


async def _parse(request: Request, body: AsyncGenerator[bytes, None]) -> FormData:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "multipart/form-data":
            return await WholeForm(request.headers, body).parse()
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
    name = PurePath((upload.filename or "").replace("\\", "/")).name
    return OpenFile(name or "the upload", upload.file)  # a name without folders: it stands in messages only
