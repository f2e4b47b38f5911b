"""Splits a multipart form that has arrived as a whole and has the usual shape, in a third of the general parser's time.

The usual shape is what common clients send: for each part a Content-Disposition with quoted names, perhaps a
Content-Type, and nothing before, between or after the parts. For any other form `split_form` returns None, and the
general parser decides: what both accept has the same fields and files, and only that one refuses.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_CONTENT_TYPE = re.compile(r"multipart/form-data; ?boundary=([A-Za-z0-9'+_.-]{1,70})", re.IGNORECASE)
_QUOTED = rb'"([^"\\;\x00-\x1f]{0,500})"'
_HEAD = re.compile(
    rb"\r\nContent-Disposition: form-data; name=" + _QUOTED + rb"(?:; filename=" + _QUOTED + rb")?\r\n"
    rb"(?:Content-Type: [^\x00-\x1f]{0,500}\r\n)?\r\n",
    re.IGNORECASE,
)
_ENDS = (b"--\r\n", b"--")


class FormPart(NamedTuple):
    name: str
    filename: str | None  # None: a text field
    data: bytes


def split_form(content_type: str, body: bytes) -> list[FormPart] | None:
    """The parts in order; None for a form that only the general parser can read."""
    found = _CONTENT_TYPE.fullmatch(content_type)
    if found is None:
        return None
    delimiter = b"\r\n--" + found[1].encode()
    if not body.startswith(delimiter[2:]):
        return None
    parts: list[FormPart] = []
    position = len(delimiter) - 2
    while body[position : position + 5] not in _ENDS:  # the end of the body, too: they are shorter
        head, end = _HEAD.match(body, position), body.find(delimiter, position)
        part = None if head is None or end < head.end() else _to_part(head, body[head.end() : end])
        if part is None:
            return None
        parts.append(part)
        position = end + len(delimiter)
    return parts


def _to_part(head: re.Match[bytes], data: bytes) -> FormPart | None:
    name, filename = head.groups()
    try:
        return FormPart(name.decode(), None if filename is None else filename.decode(), data)
    except UnicodeDecodeError:
        return None
