"""How audio travels with a job: a URL or shared path by name, small audio in the job's record, larger audio as a blob.

Blobs are read in chunks, so that a large file is never in memory as a whole.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from choral.common.sizes import binary_size
from choral.errors import AudioTooLarge, UsageError
from choral.jobs.job_queue import CHUNK_BYTES
from choral.jobs.request import AudioRef, new_id
from choral.jobs.settings import ClientSettings
from choral.remote.urls import redact_url, require_http, url_scheme


@dataclass(frozen=True)
class Upload:
    audio: AudioRef
    inline: bytes = b""
    blob: IO[bytes] | None = None
    size_bytes: int = 0  # of the blob

    async def chunks(self) -> AsyncIterator[bytes]:
        assert self.blob is not None
        while chunk := await asyncio.to_thread(self.blob.read, CHUNK_BYTES):
            yield chunk


@contextmanager
def open_upload(audio: Any, settings: ClientSettings, *, by_path: bool, name: str | None) -> Iterator[Upload]:
    is_url = url_scheme(audio) is not None
    is_path = isinstance(audio, str | os.PathLike) and not is_url
    if by_path and not is_path:
        raise UsageError("by_path works only with a path")
    if is_url:
        require_http(audio)
        yield Upload(AudioRef("url", audio, name or redact_url(audio)))
    elif by_path:
        yield Upload(AudioRef("path", os.path.abspath(audio), name or os.path.basename(audio)))
    else:
        yield from _upload_content(audio, settings, name or (os.path.basename(audio) if is_path else None))


def _upload_content(audio: Any, settings: ClientSettings, name: str | None) -> Iterator[Upload]:
    from choral.audio.source import open_source

    with open_source(audio) as source:
        file, name = source.file, name or source.name
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        if size_bytes > settings.blob_bytes:
            raise AudioTooLarge(
                f"{name} has {binary_size(size_bytes)}; at most {binary_size(settings.blob_bytes)} may go "
                "through Redis: give its URL, or its path on storage that the workers share (by_path, --by-path)"
            )
        if size_bytes <= settings.inline_bytes:
            yield Upload(AudioRef("inline", "", name), inline=file.read())
        else:
            yield Upload(AudioRef("blob", new_id(), name), blob=file, size_bytes=size_bytes)
