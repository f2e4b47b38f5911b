"""Errors of the engine's process as messages: typed errors arrive as they were raised."""

from __future__ import annotations

import json
from concurrent.futures import CancelledError

from choral import errors
from choral.serving.message_socket import Body


def encode_error(error: BaseException) -> bytes:
    return json.dumps([type(error).__name__, str(error)]).encode()


def decode_error(body: Body) -> BaseException:
    name, text = json.loads(bytes(body))
    return CancelledError() if name == CancelledError.__name__ else error_from_name(name, text)


def error_from_name(name: str, text: str) -> errors.ChoralError:
    """The same typed error; what is none of ours, a bug, comes back as `WindowFailed`."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.ChoralError):
        return kind(text)
    return errors.WindowFailed(f"the engine failed: {name}: {text}")
