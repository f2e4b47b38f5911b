"""Where the API key of a request is: in a header or, because browsers cannot set those of a WebSocket, beside it.

A WebSocket may have its key in a subprotocol, as at OpenAI, or in the query, as at Azure and some gateways. A key in
the query is removed from the request before anything can log it.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote_plus

from starlette.datastructures import Headers
from starlette.types import Scope

SCHEMES = ("bearer", "token")  # the second is Deepgram's
KEY_HEADERS = ("x-api-key", "api-key")
KEY_PROTOCOL = "openai-insecure-api-key."
QUERY_KEYS = ("api_key", "api-key")


def take_secret(scope: Scope) -> str:
    """The key that was sent, or an empty string; the first place that has one counts."""
    headers = Headers(scope=scope)
    scheme, _, token = headers.get("authorization", "").partition(" ")
    found = [token if scheme.lower() in SCHEMES else "", *(headers.get(name, "") for name in KEY_HEADERS)]
    if scope["type"] == "websocket":
        protocols = [name for name in scope.get("subprotocols", ()) if name.startswith(KEY_PROTOCOL)]
        found += [name.removeprefix(KEY_PROTOCOL) for name in protocols]
        found += _deepgram_keys(scope.get("subprotocols", ()))
        found += _take_query_keys(scope)
    return next((secret.strip() for secret in found if secret.strip()), "")


def _deepgram_keys(protocols: Sequence[str]) -> list[str]:
    """Deepgram's clients in browsers send the subprotocols `token` and the key."""
    is_deepgram = len(protocols) > 1 and protocols[0].lower() in SCHEMES
    return [protocols[1]] if is_deepgram else []


def _take_query_keys(scope: Scope) -> list[str]:
    pairs = [pair.partition("=") for pair in scope["query_string"].decode("latin-1").split("&")]
    others = [pair for pair in pairs if unquote_plus(pair[0]).lower() not in QUERY_KEYS]
    if len(others) == len(pairs):
        return []
    scope["query_string"] = "&".join("".join(pair) for pair in others).encode("latin-1")
    return [unquote_plus(pair[2]) for pair in pairs if pair not in others]
