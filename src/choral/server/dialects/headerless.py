"""Audio without a header, which some clients send: a WAV header before it makes it a file like any other."""

from __future__ import annotations

import io
import shutil
import struct
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Literal

from choral.audio.spool import cannot_store
from choral.serving.input_sources import OpenFile

Encoding = Literal["linear16", "mulaw", "alaw"]
WAV_TAGS: dict[Encoding, int] = {"linear16": 1, "alaw": 6, "mulaw": 7}
SAMPLE_BYTES: dict[Encoding, int] = {"linear16": 2, "alaw": 1, "mulaw": 1}
MAX_WAV_BYTES = 2**32 - 1
COPY_BYTES = 2**20


@dataclass(frozen=True)
class RawFormat:
    encoding: Encoding = "linear16"
    sample_rate: int = 16_000
    n_channels: int = 1

    @property
    def bytes_per_s(self) -> int:
        return self.sample_rate * self.n_channels * SAMPLE_BYTES[self.encoding]

    def wav_header(self, n_bytes: int) -> bytes:
        """Readers take the sizes of data that is longer than they can say as "up to the end"."""
        size = SAMPLE_BYTES[self.encoding]
        frame = self.n_channels * size
        layout = (WAV_TAGS[self.encoding], self.n_channels, self.sample_rate, self.bytes_per_s, frame, 8 * size)
        data_bytes = min(n_bytes, MAX_WAV_BYTES)
        return (
            b"RIFF" + struct.pack("<I", min(n_bytes + 36, MAX_WAV_BYTES)) + b"WAVE"
            b"fmt " + struct.pack("<IHHIIHH", 16, *layout) + b"data" + struct.pack("<I", data_bytes)
        )  # fmt: skip


def with_wav_header(audio: OpenFile, raw: RawFormat) -> OpenFile:
    """A copy of the audio with a header, in memory if it was there; of a file that has one, the file itself.

    The caller closes it. Blocks while it copies.
    """
    source = audio.file
    n_bytes = source.seek(0, io.SEEK_END)
    source.seek(0)
    head = source.read(12)
    source.seek(0)
    if not n_bytes or (head[:4] == b"RIFF" and head[8:] == b"WAVE"):
        return audio
    try:
        copy: IO[bytes] = io.BytesIO() if isinstance(source, io.BytesIO) else TemporaryFile()  # noqa: SIM115
        copy.write(raw.wav_header(n_bytes))
        shutil.copyfileobj(source, copy, COPY_BYTES)
        copy.flush()
    except OSError as error:
        raise cannot_store(error) from error
    return OpenFile(f"{audio.name}.wav", copy)
