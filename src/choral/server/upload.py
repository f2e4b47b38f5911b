"""The streaming reader of uploaded forms: text fields, and files that go to disk beyond a small size.

Text fields have a limit of their own, because they are held in memory and decoded in the event loop; `request_body` has
the limits of all requests.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from tempfile import SpooledTemporaryFile
from typing import IO
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from choral.audio.spool import cannot_store
from choral.common.aio import close_in_thread
from choral.server.admission import UploadSlot
from choral.server.api_errors import ApiError
from choral.server.regular_form import split_form
from choral.server.request_body import limited_body, read_whole, too_large
from choral.server.settings import ServerSettings
from choral.serving.input_sources import OpenFile

MULTIPART, URLENCODED = "multipart/form-data", "application/x-www-form-urlencoded"
SMALL_FORM_BYTES = 2**20  # read as a whole, in memory
MAX_TEXT_BYTES = 256 * 1024  # of all other text fields of a form together
MAX_REFERENCE_BYTES = 4 * 2**20  # of all fields that hold audio as text
REFERENCE_FIELDS = ("known_speaker_references[]", "known_speaker_references")
MAX_FIELDS, MAX_FILES = 256, 2  # lists have a field for each value
# Other codecs can take minutes for a megabyte, fail in ways of their own, or decode to text that cannot be encoded.
# The names are compared as text: Python caches every unknown codec that is looked up.
CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1")


@dataclass(frozen=True)
class Form:
    fields: tuple[tuple[str, str], ...]  # in order; a name may be repeated
    files: tuple[tuple[str, OpenFile], ...]


@asynccontextmanager
async def read_form(request: Request, settings: ServerSettings, slot: UploadSlot) -> AsyncIterator[Form]:
    """The form of a request. Its files are closed on exit, even if the request is cancelled."""
    length = request.headers.get("content-length", "")
    n_bytes = int(length) if length.isdecimal() else None
    if n_bytes is not None and n_bytes > settings.max_upload_bytes:
        raise too_large(n_bytes, settings.max_upload_bytes)
    kind = _require_form(request)
    uploads: list[UploadFile] = []
    with _as_api_errors():
        if kind == URLENCODED:
            form = Form(await _read_urlencoded(limited_body(request, settings, slot)), ())
        elif n_bytes is not None and n_bytes <= SMALL_FORM_BYTES:
            form, uploads = await _read_small(request, await read_whole(request, settings, slot))
        else:
            form, uploads = await _read_multipart(request, limited_body(request, settings, slot))
    try:
        yield form
    finally:
        for upload in uploads:
            _close(upload)


@asynccontextmanager
async def read_body(request: Request, settings: ServerSettings, slot: UploadSlot) -> AsyncIterator[OpenFile]:
    """The body as a file, for requests that are audio and no form; closed on exit."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > settings.max_upload_bytes:
        raise too_large(int(length), settings.max_upload_bytes)
    spooled = SpooledTemporaryFile(max_size=MultiPartParser.spool_max_size)  # noqa: SIM115  closed below
    upload = UploadFile(spooled, size=0)  # type: ignore[arg-type]
    try:
        with _as_api_errors():
            async for piece in limited_body(request, settings, slot):
                await upload.write(piece)
            await upload.seek(0)
            content = _content(upload)
        yield _open_file(None, content)
    finally:
        _close(upload)


def _require_text_size(n_bytes: int) -> None:
    if n_bytes > MAX_TEXT_BYTES:
        text = f"the text fields of the form have more than {MAX_TEXT_BYTES // 1024} KiB together: send audio as a file"
        raise ApiError(text, status=413, code="request_too_large")


def _require_reference_size(n_bytes: int) -> None:
    if n_bytes > MAX_REFERENCE_BYTES:
        limit = f"{MAX_REFERENCE_BYTES // 2**20} MiB"
        text = f"known_speaker_references have more than {limit} together: send clips in mono, or compressed"
        raise ApiError(text, status=413, param="known_speaker_references", code="request_too_large")


class CompleteFormParser(MultiPartParser):
    """Refuses a truncated form, which Starlette's parser accepts: a field that is missing from it may matter."""

    def __init__(self, headers: Headers, body: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers, self._until_end(body), max_files=MAX_FILES, max_fields=MAX_FIELDS)
        self.max_part_size = MAX_REFERENCE_BYTES
        self._has_ended = False
        self._n_text_bytes = self._n_reference_bytes = 0

    async def _until_end(self, body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async for piece in body:
            yield piece
        if not self._has_ended:
            raise MultiPartException("it was cut off before its end")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._current_part.file is None and self._current_part.field_name in REFERENCE_FIELDS:
            self._n_reference_bytes += end - start
            _require_reference_size(self._n_reference_bytes)
        elif self._current_part.file is None:
            self._n_text_bytes += end - start
            _require_text_size(self._n_text_bytes)
        super().on_part_data(data, start, end)

    def on_end(self) -> None:
        self._has_ended = True


async def _read_urlencoded(body: AsyncGenerator[bytes, None]) -> tuple[tuple[str, str], ...]:
    text = bytearray()
    async for piece in body:
        text += piece
        _require_text_size(len(text))
    pairs = [pair.partition(b"=") for pair in bytes(text).split(b"&", MAX_FIELDS) if pair]
    if len(pairs) > MAX_FIELDS:
        raise MultiPartException(f"it has more than {MAX_FIELDS} fields")
    return tuple((_unquote(name), _unquote(value)) for name, _, value in pairs)


def _unquote(text: bytes) -> str:
    return unquote_to_bytes(text.replace(b"+", b" ")).decode("utf-8", "replace")


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _require_form(request: Request) -> str:
    """The content type, with a character set that can be read."""
    kind = content_type(request)
    if kind not in (MULTIPART, URLENCODED):
        raise ApiError(
            f"the content type is {kind or 'not given'}; send multipart/form-data with the audio in the field `file`",
            status=415,
            code="unsupported_content_type",
        )
    charset = parse_options_header(request.headers["content-type"])[1].get(b"charset", b"utf-8").decode("latin-1")
    if charset.strip().lower() not in CHARSETS:
        text = f"the form has the character set {charset[:100]!r}: send it in utf-8"
        raise ApiError(text, code="invalid_form")
    return kind


@contextmanager
def _as_api_errors() -> Iterator[None]:
    try:
        yield
    except (MultiPartException, FormParserError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise ApiError(f"the form cannot be read ({reason}): send multipart/form-data", code="invalid_form") from error
    except ClientDisconnect as error:
        raise ApiError("the upload was cut off", code="upload_cut_off") from error
    except OSError as error:  # the file that the upload goes to
        raise cannot_store(error) from error


async def _read_multipart(request: Request, body: AsyncGenerator[bytes, None]) -> tuple[Form, list[UploadFile]]:
    """The form, and what must be closed after its use."""
    items = (await CompleteFormParser(request.headers, body).parse()).multi_items()
    fields = tuple((name, value) for name, value in items if isinstance(value, str))
    uploads = [(name, value) for name, value in items if isinstance(value, UploadFile)]
    files = tuple((name, _open_file(value.filename, _content(value))) for name, value in uploads)
    return Form(fields, files), [value for _, value in uploads]


async def _read_small(request: Request, whole: bytes) -> tuple[Form, list[UploadFile]]:
    """To read a form as a whole is much faster."""
    form = _read_regular(request.headers["content-type"], whole)
    return (form, []) if form is not None else await _read_multipart(request, _only(whole))


def _read_regular(content_type: str, body: bytes) -> Form | None:
    """None for a form that the general parser must read, or refuse."""
    parts = split_form(content_type, body)
    if parts is None:
        return None
    texts = [part for part in parts if part.filename is None]
    files = [part for part in parts if part.filename is not None]
    n_text_bytes = sum(len(part.data) for part in texts if part.name not in REFERENCE_FIELDS)
    if len(texts) > MAX_FIELDS or len(files) > MAX_FILES or n_text_bytes > MAX_TEXT_BYTES:
        return None
    try:
        fields = tuple((part.name, part.data.decode()) for part in texts)
    except UnicodeDecodeError:
        return None
    return Form(fields, tuple((part.name, _open_file(part.filename, io.BytesIO(part.data))) for part in files))


async def _only(piece: bytes) -> AsyncGenerator[bytes, None]:
    yield piece


def _open_file(filename: str | None, file: IO[bytes]) -> OpenFile:
    """The name is used in messages only: folders are removed."""
    name = PurePath((filename or "").replace("\\", "/")).name
    return OpenFile(name or "the upload", file)


def _content(upload: UploadFile) -> IO[bytes]:
    return io.BytesIO(upload.file.read()) if _is_in_memory(upload) else upload.file


def _close(upload: UploadFile) -> None:
    """A file on disk may be large and take long to close; for one in memory, waking a thread would take longer."""
    if _is_in_memory(upload):
        upload.file.close()
    else:
        close_in_thread(upload.file)


def _is_in_memory(upload: UploadFile) -> bool:
    return upload.size is not None and upload.size <= MultiPartParser.spool_max_size
