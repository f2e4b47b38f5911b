"""One HTTP request with the standard library: proxies, certificates, credentials and redirects.

Only http and https. A request ends in a response, in `RefusedError` (a retry cannot help) or in `UnreachableError`
(a retry may succeed). Credentials in a URL become a header: they are not sent to another server on a redirect, and
appear in no message. A request with a body is a POST and follows no redirect.
"""

from __future__ import annotations

import base64
import errno
import functools
import os
import re
import socket
import ssl
import urllib.error
import urllib.request as web
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection, InvalidURL
from typing import IO, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from choral.remote.abort_handle import AbortHandle
from choral.remote.pip_config import pip_settings
from choral.remote.ssrf_guard import AddressRefused, GuardedHandler, GuardedTlsHandler, SsrfGuard
from choral.remote.urls import url_problem, without_credentials

_CHUNK_BYTES = 1 << 18
_MAX_SIZE_DIGITS = 18
_RETRYABLE_STATUSES = {408, 425, 429, 500, 502, 503, 504}


class RefusedError(Exception):
    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class RangeError(RefusedError):
    """The server has no bytes at the requested offset."""


class ForbiddenError(RefusedError):
    """The SSRF guard does not permit the address."""


class UnreachableError(Exception):
    def __init__(self, text: str, wait_s: float = 0.0, status: int | None = None) -> None:
        super().__init__(text)
        self.wait_s = wait_s
        self.status = status


def open_url(
    url: str,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    proxy: str | None = None,
    body: bytes | None = None,
    guard: SsrfGuard | None = None,
    abort_handle: AbortHandle | None = None,
) -> HTTPResponse:
    """The response of a GET, or of a POST where there is a body; the caller closes it.

    With a guard, the request connects only to permitted addresses, uses no proxy, and can be aborted.
    """
    assert guard is None or proxy is None
    assert guard is not None or abort_handle is None
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise RefusedError("not an http or https URL")
        request = web.Request(_percent_encoded(without_credentials(parts)), body, _request_headers(parts, headers))
        opener = _opener(proxy) if guard is None else _guarded_opener(guard, abort_handle or AbortHandle())
        return cast(HTTPResponse, opener.open(request, timeout=timeout_s))
    except urllib.error.HTTPError as error:
        error.close()
        raise _error_of_status(error) from None
    except urllib.error.URLError as error:
        raise _error_of_reason(error.reason) from error
    except AddressRefused as error:
        raise ForbiddenError(str(error)) from error
    except (InvalidURL, ValueError, OverflowError) as error:  # a redirect may lead to a port of any size
        raise RefusedError(f"not a valid URL ({error})") from error
    except (HTTPException, OSError) as error:
        raise _error_of_reason(error) from error


def read(response: HTTPResponse) -> bytes:
    """The next bytes that have arrived; empty at the end."""
    try:
        return response.read1(_CHUNK_BYTES)
    except (HTTPException, OSError) as error:
        raise _error_of_reason(error) from error


def require_whole(size_bytes: int, expected_bytes: int | None) -> None:
    if expected_bytes is not None and size_bytes != expected_bytes:
        raise UnreachableError(f"the connection ended after {size_bytes:,} of {expected_bytes:,} bytes")


def length_of(response: HTTPResponse) -> int | None:
    length = response.headers.get("Content-Length", "")
    return parse_size(length) if length.isdecimal() else None


def range_of(response: HTTPResponse) -> tuple[int, int | None]:
    """Where a partial response starts, and the size of the whole."""
    match = re.match(r"bytes (\d+)-\d+/(\d+|\*)$", response.headers.get("Content-Range", ""))
    if match is None:
        return -1, None
    return parse_size(match[1]), None if match[2] == "*" else parse_size(match[2])


def parse_size(digits: str) -> int:
    """A number of bytes from a header. Python refuses to convert thousands of digits, and floats cannot hold them."""
    if len(digits) > _MAX_SIZE_DIGITS:
        raise RefusedError(f"the server declares a size of {len(digits):,} digits")
    return int(digits)


def _percent_encoded(parts: SplitResult) -> str:
    """The URL with spaces and non-ASCII characters encoded."""
    safe = "%!$&'()*+,;=:@/?~-._[]"
    host = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    return parts._replace(netloc=host, path=quote(parts.path, safe=safe), query=quote(parts.query, safe=safe)).geturl()


def _request_headers(parts: SplitResult, headers: Mapping[str, str]) -> dict[str, str]:
    complete = {"User-Agent": "choral", "Accept-Encoding": "identity", **headers}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        complete["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    return complete


def _error_of_status(error: urllib.error.HTTPError) -> RefusedError | UnreachableError:
    text = f"the server answered {error.code} {error.reason}".rstrip()
    if error.code == 416:
        return RangeError(text, error.code)
    if error.code in _RETRYABLE_STATUSES:
        wait = error.headers.get("Retry-After", "") if error.headers else ""
        return UnreachableError(text, float(wait) if wait.isdecimal() else 0.0, error.code)
    return RefusedError(text, error.code)


def _error_of_reason(reason: object) -> RefusedError | UnreachableError:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return RefusedError(
            f"its certificate is not trusted ({reason.verify_message}); "
            "set SSL_CERT_FILE to the certificates of your network"
        )
    if isinstance(reason, socket.gaierror) and reason.errno != socket.EAI_AGAIN:
        return RefusedError("the name of the server is not known here; check the URL and the network")
    if isinstance(reason, OSError) and reason.errno == errno.ECONNREFUSED:
        return UnreachableError("connection refused")
    if isinstance(reason, TimeoutError):
        return UnreachableError("no response in time")
    if isinstance(reason, BaseException):
        return UnreachableError(str(reason) or type(reason).__name__)
    return RefusedError(str(reason))


class _Redirects(web.HTTPRedirectHandler):
    def redirect_request(
        self, req: web.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> web.Request | None:
        if req.data is not None:
            return None  # a body for one server is not sent to another
        if problem := url_problem(newurl):
            fp.close()
            raise RefusedError(f"it redirects to a URL that is not valid: {problem}")
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and _origin(newurl) != _origin(req.full_url):
            following.remove_header("Authorization")
        fp.close()  # otherwise the whole body of the redirect would be read into memory
        return following


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


class _Https(web.HTTPSHandler):
    def https_open(self, req: web.Request) -> HTTPResponse:
        # Lazily, because finding the certificates runs pip.
        return self.do_open(HTTPSConnection, req, context=_tls_context())


@functools.cache
def _opener(proxy: str | None) -> web.OpenerDirector:
    proxies = {"http": proxy, "https": proxy} if proxy else None
    return _build_opener(web.ProxyHandler(proxies), web.HTTPHandler(), _Https())


def _guarded_opener(guard: SsrfGuard, abort_handle: AbortHandle) -> web.OpenerDirector:
    return _build_opener(GuardedHandler(guard, abort_handle), GuardedTlsHandler(guard, abort_handle, _tls_context))


def _build_opener(*connection_handlers: web.BaseHandler) -> web.OpenerDirector:
    opener = web.OpenerDirector()
    for handler in (
        *connection_handlers,
        _Redirects(),
        web.HTTPErrorProcessor(),
        web.HTTPDefaultErrorHandler(),
        web.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


@functools.cache
def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    for path in (pip_settings().cert, os.environ.get("REQUESTS_CA_BUNDLE")):
        if path:
            is_folder = os.path.isdir(path)
            try:
                context.load_verify_locations(None if is_folder else path, path if is_folder else None)
            except OSError as error:
                raise RefusedError(f"the certificates at {path} cannot be read ({error})") from error
    return context
