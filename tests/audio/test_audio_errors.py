"""Every kind of bad input raises its own error class with a message that says what to do."""

from __future__ import annotations

import contextlib
import http.server
import io
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from choral.audio import media, source
from choral.audio.decode import Decoder
from choral.audio.recording import Recording
from choral.errors import (
    AudioDenied,
    AudioEmpty,
    AudioError,
    AudioNotFound,
    AudioTooLarge,
    BadSamples,
    ChoralError,
    FetchFailed,
    NoAudioTrack,
    NotAudio,
    StorageError,
    UsageError,
)
from media_files import encode, png, wav

TONES = (np.sin(np.arange(32_000) * 0.1) * 8_000).astype(np.int16)


def with_nan(value: float) -> bytes:
    samples = TONES.astype(np.float32) / 32768
    samples[20_000] = value
    return wav(samples)


def cut_mp4() -> bytes:
    media = encode(TONES, "mp4", "aac")  # its index is at the end
    return media[: len(media) // 2]


def with_rate(rate: int) -> bytes:
    media = bytearray(wav(TONES))
    struct.pack_into("<I", media, 24, rate)
    return bytes(media)


BAD_INPUTS: dict[str, tuple[Callable[[Path], Any], type[ChoralError], str]] = {
    "missing file": (lambda folder: folder / "no.wav", AudioNotFound, "does not exist: check the path"),
    "missing folder": (lambda folder: str(folder / "no" / "no.wav"), AudioNotFound, "does not exist"),
    "file as folder": (lambda folder: folder / "text.txt" / "x.wav", AudioNotFound, "does not exist"),
    "folder": (lambda folder: folder, AudioNotFound, "is a folder: give the audio files in it"),
    "path with a zero byte": (lambda folder: "a\0b.wav", AudioNotFound, "does not exist"),
    "path that is too long": (lambda folder: "x" * 5_000, AudioError, "could not be opened"),
    "empty path": (lambda folder: "", AudioNotFound, "does not exist"),
    "empty file": (lambda folder: folder / "empty.wav", AudioEmpty, "it has no bytes"),
    "no bytes": (lambda folder: b"", AudioEmpty, "it has no bytes"),
    "empty stream": (lambda folder: io.BytesIO(), AudioEmpty, "it has no bytes"),
    "text": (lambda folder: folder / "text.txt", NotAudio, "not audio that can be read"),
    "text that is called mp3": (lambda folder: folder / "text.mp3", NotAudio, "damaged"),
    "random bytes": (lambda folder: np.random.default_rng(5).bytes(50_000), NotAudio, "not audio"),
    "one byte": (lambda folder: b"R", NotAudio, "not audio"),
    "picture": (lambda folder: png(), NotAudio, "not audio"),
    "wav header alone": (lambda folder: wav(np.zeros(0, np.int16)), AudioEmpty, "decodes to no samples"),
    "half a wav header": (lambda folder: wav(TONES)[:30], NotAudio, "cut short"),
    "mp4 without its index": (lambda folder: cut_mp4(), NotAudio, "damaged or cut short"),
    "video without sound": (lambda folder: encode(TONES, "mp4", None, video="mpeg4"), NoAudioTrack, "without audio"),
    "NaN in a file": (lambda folder: with_nan(np.nan), BadSamples, "NaN or infinite: export it again"),
    "infinity in a file": (lambda folder: with_nan(-np.inf), BadSamples, "NaN or infinite"),
    "impossible rate": (lambda folder: with_rate(3), NotAudio, "a sample rate of 3 Hz is not possible"),
    "NaN in an array": (lambda folder: np.array([0, np.nan], np.float32), BadSamples, "nan_to_num"),
    "infinity in an array": (lambda folder: np.array([0, -np.inf]), BadSamples, "NaN or infinite"),
    "double beyond a float": (lambda folder: np.array([0, 1e300]), BadSamples, "NaN or infinite"),
    "stereo array": (lambda folder: np.zeros((2, 100), np.float32), BadSamples, r"shape \(2, 100\).*1-D array"),
    "array of another type": (lambda folder: np.zeros(100, np.int64), BadSamples, "int64; give 16 kHz samples"),
    "list": (lambda folder: [0.0, 0.1], UsageError, "audio is a list; give a path"),
    "none": (lambda folder: None, UsageError, "audio is a NoneType; give a path"),
    "text stream": (lambda folder: io.StringIO("hello"), UsageError, "open it in binary mode"),
    "ftp": (lambda folder: "ftp://example.org/a.wav", UsageError, "ftp URLs are not supported"),
    "rtmp": (lambda folder: "rtmp://example.org/live", UsageError, "give a path or an http"),
    "file address": (lambda folder: (folder / "empty.wav").as_uri(), UsageError, "give a path"),
    "ffmpeg protocol": (lambda folder: f"concat:{folder}/good.wav", AudioNotFound, "does not exist"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.txt").write_text("Dear reader,\nthis is a letter and not a sound.\n" * 50)
    (tmp_path / "text.mp3").write_text("Dear reader,\nthis is a letter and not a sound.\n" * 50)
    (tmp_path / "good.wav").write_bytes(wav(TONES))
    return tmp_path


@pytest.mark.parametrize(("make", "error", "message"), BAD_INPUTS.values(), ids=BAD_INPUTS.keys())
def test_bad_input(
    folder: Path, make: Callable[[Path], Any], error: type[ChoralError], message: str, capfd: Any
) -> None:
    with pytest.raises(error, match=message) as caught:
        Recording.open(make(folder))
    assert type(caught.value) is error
    assert capfd.readouterr() == ("", "")


def test_file_without_permission(folder: Path) -> None:
    (folder / "good.wav").chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)  # root may read everything, this user may not
    try:
        with pytest.raises(AudioDenied, match="check its permissions"):
            Recording.open(folder / "good.wav")
    finally:
        os.seteuid(user)


PLAYLISTS = {
    "m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:2,\n{file}\n#EXT-X-ENDLIST\n",
    "ffconcat": "ffconcat version 1.0\nfile '{file}'\n",
    "concat": "file '{file}'\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    "mpd": '<?xml version="1.0"?><MPD type="static" mediaPresentationDuration="PT2S"><Period><AdaptationSet '
    'contentType="audio"><Representation id="0" bandwidth="1"><BaseURL>{file}</BaseURL></Representation>'
    "</AdaptationSet></Period></MPD>",
    "jpg": "not a picture",
}


@pytest.mark.parametrize("suffix", PLAYLISTS)
@pytest.mark.parametrize("with_file_protocol", [False, True])
def test_playlist_cannot_read_another_file(folder: Path, suffix: str, with_file_protocol: bool) -> None:
    other = folder / "good.ts"
    other.write_bytes(encode(TONES, "mpegts", "mp2"))
    place = f"file:{other}" if with_file_protocol else str(other)
    playlist = folder / f"list.{suffix}"
    playlist.write_text(PLAYLISTS[suffix].format(file=place))
    for audio in (playlist, playlist.read_bytes()):
        with pytest.raises(NotAudio):
            Recording.open(audio)
    assert Recording.open(other).duration > 1.9


def test_endless_pipe_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_STREAM_BYTES", 10_000_000)

    class EndlessStream(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return b"\0" * size

    with pytest.raises(AudioTooLarge, match=r"the given stream is larger than 9.54 MiB"):
        Recording.open(EndlessStream())


def test_read_error_of_a_stream() -> None:
    class FailingStream(io.BytesIO):
        good_bytes = 20_000

        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= self.good_bytes:
                raise OSError(5, "Input/output error")
            return super().read(size)

    for good_bytes in (0, 1, 20_000):
        FailingStream.good_bytes = good_bytes
        with pytest.raises(AudioError, match="the given stream could not be read: Input/output error"):
            Recording.open(FailingStream(wav(TONES)))
    assert Recording.open(wav(TONES)).n_samples == 32_000, "the next file is not touched by it"


def test_stream_returning_more_bytes_than_requested() -> None:
    class OverfullStream(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            return data + b"x" * 100_000 if data else data

    Recording.open(OverfullStream(wav(TONES))).close()


def test_busy_time_without_audio_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MAX_BUSY_S", 0.0)
    with pytest.raises(NotAudio, match="no audio was found in 0 s of decoding"):
        Recording.open(wav(TONES))


def test_pauses_of_the_reader_are_not_busy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MAX_BUSY_S", 0.3)
    decoder = Decoder(source.open_source(wav(np.tile(TONES, 5))))
    for piece in decoder.pieces():
        assert piece.size
        time.sleep(0.4)


def test_full_disk_while_spooling(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda max_size: open("/dev/full", "r+b"))  # noqa: SIM115
    with pytest.raises(StorageError, match="no space left"):
        Recording.open(Pipe(wav(TONES)))


class Handler(http.server.BaseHTTPRequestHandler):
    good: ClassVar[bytes] = wav(TONES)
    redirects: ClassVar[dict[str, str]] = {"/moved": "/good.wav", "/loop": "/loop", "/escape": "file:///etc/passwd"}

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in self.redirects:
            self.send_response(302)
            self.send_header("Location", self.redirects[path])
            self.end_headers()
        elif path.startswith("/status/"):
            self.send_error(int(path.rpartition("/")[2]))
        elif path == "/slow":
            time.sleep(3)
        elif path == "/trickle":
            self._trickle()
        elif path.startswith("/digits/"):
            self.send_response(200)
            self.send_header("Content-Length", "9" * int(path.rpartition("/")[2]))
            self.end_headers()
        else:
            self._send_body(path)

    def _trickle(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                self.wfile.write(b"RIFF")
                time.sleep(0.05)

    def _send_body(self, path: str) -> None:
        body = b"" if path == "/empty" else self.good
        self.send_response(200)
        if path != "/unknown-length":
            self.send_header("Content-Length", str(len(body) + (100 if path == "/short" else 0)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing on stderr."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.mark.parametrize("path", ["/good.wav", "/good.wav?token=secret", "/moved", "/unknown-length"])
def test_url(server: str, path: str) -> None:
    with Recording.open(server + path) as recording:
        assert recording.n_samples == 32_000
        assert recording.name == server + path.partition("?")[0]


BAD_ADDRESSES = [
    ("/status/404", AudioNotFound, "answers 404"),
    ("/status/410", AudioNotFound, "answers 410"),
    ("/status/401", AudioDenied, "answers 401"),
    ("/status/403", AudioDenied, "answers 403"),
    ("/status/500", FetchFailed, "answered 500.*try again"),
    ("/status/429", FetchFailed, "answered 429"),
    ("/loop", FetchFailed, "answered 302"),
    ("/escape", FetchFailed, "answered 302"),
    ("/short", FetchFailed, "ended after 64,044 of 64,144 bytes"),
    ("/empty", AudioEmpty, "is empty"),
    ("/digits/18", AudioTooLarge, "send a shorter or compressed file"),
    ("/digits/400", FetchFailed, "declares a size of 400 digits"),  # more than a float can hold
    ("/digits/5000", FetchFailed, "declares a size of 5,000 digits"),  # more than Python converts
]


@pytest.mark.parametrize(("path", "error", "message"), BAD_ADDRESSES)
def test_bad_url(server: str, path: str, error: type[ChoralError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        Recording.open(server + path)
    assert type(caught.value) is error


def test_url_with_spaces_and_umlauts(server: str) -> None:
    with Recording.open(server + "/ü und a.wav?q=ä b") as recording:
        assert recording.n_samples == 32_000


def test_text_mode_and_closed_files(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"RIFF")
    with path.open() as text, pytest.raises(UsageError, match="binary mode"):
        Recording.open(text)  # type: ignore[arg-type]
    with path.open("rb") as closed:
        pass
    with pytest.raises(AudioError, match="closed file"):
        Recording.open(closed)


def test_fetch_stall_timeout(server: str) -> None:
    with pytest.raises(FetchFailed, match="no response in time"):
        source.fetch(server + "/slow", stall_timeout_s=0.2)


def test_fetch_total_timeout(server: str) -> None:
    start_s = time.monotonic()
    with pytest.raises(FetchFailed, match="download it first"):
        source.fetch(server + "/trickle", total_timeout_s=0.3)
    assert time.monotonic() - start_s < 2


def test_fetch_refuses_a_trickle(server: str) -> None:
    start_s = time.monotonic()
    with pytest.raises(FetchFailed, match=r"sends less than 32 KiB in 0.5 s") as caught:
        source.fetch(server + "/trickle", stall_timeout_s=0.5)
    assert caught.value.is_retryable
    assert time.monotonic() - start_s < 3


@pytest.mark.parametrize("path", ["/good.wav", "/unknown-length"])
def test_fetch_size_limit(server: str, path: str) -> None:
    with pytest.raises(AudioTooLarge, match="send a shorter or compressed file"):
        source.fetch(server + path, max_bytes=10_000)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/a.wav", "http://no.such.host.invalid/a.wav"])
def test_unreachable_url(url: str) -> None:
    with pytest.raises(FetchFailed, match="could not fetch"):
        Recording.open(url)


def test_url_without_a_host_is_refused() -> None:
    with pytest.raises(UsageError, match="host name is not valid"):
        Recording.open("http:///a.wav")


def test_url_credentials_are_not_in_errors() -> None:
    with pytest.raises(FetchFailed) as caught:
        Recording.open("http://user:pass@127.0.0.1:1/a.wav?token=secret")
    assert "pass" not in str(caught.value)
    assert "secret" not in str(caught.value)
