"""A form that is split as a whole has the same fields and files as in the general parser."""

from __future__ import annotations

import asyncio

import httpx
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from choral.server.admission import UploadSlot
from choral.server.api_errors import ApiError
from choral.server.regular_form import FormPart, split_form
from choral.server.settings import ServerSettings
from choral.server.upload import MAX_FIELDS, read_form

CONTENT_TYPE = "multipart/form-data; boundary=xyz"
TEXT = b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper-1'
REFERENCE = b'Content-Disposition: form-data; name="known_speaker_references[]"\r\n\r\ndata:audio/wav;base64,'
FILE = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
TOKENS = [
    b"--xyz", b"--xyz--", b"xyz", b"--", b"-", b"\r\n", b"\r", b"\n", b"\r\n\r\n", b"--xyz\r\n" + TEXT + b"\r\n", FILE,
    b"Content-Type: text/plain", b'; filename="b"', b'; filename=""', b"; filename*=utf-8''c", b'; name="n"', b'"',
    b'\\"', b"\\", b";", b":", b" ", b"\t", b"\0", "é".encode(), b"\xff", b"C:\\d",
    b'content-disposition: form-data; name="m"',
]  # fmt: skip


def form(*parts: bytes) -> bytes:
    return b"".join(b"--xyz\r\n" + part + b"\r\n" for part in parts) + b"--xyz--\r\n"


def read(body: bytes, *, is_length_known: bool) -> object:
    """The fields and files, or the error. Only a form whose length is known to be small is split as a whole."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def run() -> object:
        headers = [(b"content-type", CONTENT_TYPE.encode())]
        headers += [(b"content-length", str(len(body)).encode())] * is_length_known
        request = Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)
        try:
            async with read_form(request, ServerSettings(), UploadSlot(0)) as found:
                return found.fields, [(name, file.name, file.file.read()) for name, file in found.files]
        except ApiError as error:
            return str(error)

    return asyncio.run(run())


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 12), st.sampled_from(TOKENS)), max_size=3))
@example([])
@example([(len(form(TEXT)) - 9, 0, b"\xff")])  # not UTF-8
@example([(len(form(TEXT)) - 9, 0, b"\r\n--xyz ")])
@example([(form(TEXT).index(b"model"), 0, b"\\\\")])
@example([(0, 0, b"--xyz\r\n" + TEXT + b"\r\n")] * 3)
def test_form_is_read_as_by_the_general_parser(edits: list[tuple[int, int, bytes]]) -> None:
    body = form(TEXT, FILE + b"RIFF")
    for position, n_deleted, token in edits:
        body = body[:position] + token + body[position + n_deleted :]
    assert read(body, is_length_known=True) == read(body, is_length_known=False)


def test_limits_of_forms_hold_for_those_that_are_split_as_a_whole() -> None:
    too_large = [REFERENCE + b"A" * 3 * 2**20] * 2
    for parts in ([TEXT] * (MAX_FIELDS + 1), [FILE] * 3, [TEXT + bytes(256 * 1024)], too_large):
        refusal = read(form(*parts), is_length_known=True)
        assert isinstance(refusal, str)
        assert refusal == read(form(*parts), is_length_known=False)
    clip = form(REFERENCE + b"A" * 500_000)  # more than other texts may have
    for is_length_known in (True, False):
        assert read(clip, is_length_known=is_length_known) == (
            (("known_speaker_references[]", "data:audio/wav;base64," + "A" * 500_000),),
            [],
        )


def test_forms_of_common_clients_have_the_usual_shape() -> None:
    fields, data = {"model": "whisper-1", "include[]": "logprobs", "prompt": "Größe\r\n--"}, bytes(range(256)) * 300
    request = httpx.Request("POST", "http://a/", data=fields, files={"file": ("ä.wav", data, "audio/wav")})
    expected = [FormPart(name, None, value.encode()) for name, value in fields.items()]
    parts = split_form(request.headers["content-type"], request.read())
    assert parts == [*expected, FormPart("file", "ä.wav", data)]
    browser = "----WebKitFormBoundary7MA4YWxkTrZu0gW"
    body = form(FILE).replace(b"xyz", browser.encode())
    assert split_form(f"multipart/form-data; boundary={browser}", body) == [FormPart("file", "a.wav", b"")]


def test_form_that_is_not_complete_is_left_to_the_general_parser() -> None:
    body = form(TEXT)
    assert split_form(CONTENT_TYPE, body) == [FormPart("model", None, b"whisper-1")]
    assert [n for n in range(len(body) - 2) if split_form(CONTENT_TYPE, body[:n]) is not None] == []
