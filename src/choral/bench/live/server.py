"""`choral serve` in a process of its own, at a free port; and files that are sent to it."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import wave
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.errors import EngineError

READY_WITHIN_S, END_WITHIN_S, ANSWER_WITHIN_S = 300.0, 60.0, 300.0
LOOK_EVERY_S = 0.05


class LiveServer:
    """Ready when it is made."""

    def __init__(self, flags: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed with the process)
        command = [sys.executable, "-m", "choral", "serve", "--port=0", "--quiet", *flags]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, env=os.environ, text=True)
        try:
            self.url = self._address()
            self._wait_until_ready()
        except BaseException:
            self._close()
            raise

    def transcribe(self, samples: npt.NDArray[np.int16], **fields: str) -> Mapping[str, Any]:
        """Sent as a file, as any other client would."""
        border = secrets.token_hex(16)
        head = 'Content-Disposition: form-data; name="'
        parts = [
            f'{head}{name}"\r\n\r\n{value}\r\n'.encode() for name, value in {"model": "whisper-1", **fields}.items()
        ]
        parts.append(f'{head}file"; filename="talk.wav"\r\n\r\n'.encode() + wav_bytes(samples) + b"\r\n")
        body = b"".join(f"--{border}\r\n".encode() + part for part in parts) + f"--{border}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={border}"}
        request = urllib.request.Request(f"{self.url}/v1/audio/transcriptions", body, headers)
        with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as answer:
            found: Mapping[str, Any] = json.load(answer)
        return found

    def __enter__(self) -> LiveServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _address(self) -> str:
        assert self._process.stdout is not None
        found = re.search(r" at (http://\S+)", self._process.stdout.readline())
        if found is None:
            raise EngineError(f"the server did not start: {self._last_words()}")
        return found[1]

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + READY_WITHIN_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise EngineError(f"the server did not become ready: {self._last_words()}")
            time.sleep(LOOK_EVERY_S)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health/ready", timeout=ANSWER_WITHIN_S):
                return True
        except (urllib.error.HTTPError, urllib.error.URLError):
            return False

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return lines[-1] if lines else "it said nothing"

    def _close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


def wav_bytes(samples: npt.NDArray[np.int16]) -> bytes:
    packed = io.BytesIO()
    with wave.open(packed, "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, samples.size, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return packed.getvalue()
