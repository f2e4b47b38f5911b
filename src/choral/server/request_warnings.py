"""The `Warning` header of a response: what the request asked for and did not get, in RFC 7234's form."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.responses import Response

MISCELLANEOUS = 299  # the code of a persistent warning of any kind
MAX_NAMES, MAX_NAME_CHARACTERS = 20, 60
_UNSAFE = re.compile(r"[^\w.\[\]-]", re.ASCII)  # a name is the client's text, and must not leave its header


def unknown_fields_warning(names: Sequence[str]) -> str:
    shown = ", ".join(_UNSAFE.sub("?", name[:MAX_NAME_CHARACTERS]) for name in names[:MAX_NAMES])
    return f"unknown fields without effect: {shown}" + (", and more" if len(names) > MAX_NAMES else "")


def add_warnings(response: Response, warnings: Sequence[str]) -> Response:
    """The texts must be printable ASCII without quotes."""
    if warnings:
        response.headers["Warning"] = ", ".join(f'{MISCELLANEOUS} choral "{text}"' for text in warnings)
    return response
