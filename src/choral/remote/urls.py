"""URLs as users give them: distinguish them from paths, validate them, and print them without secrets."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from choral.errors import UsageError

MAX_URL_CHARACTERS = 8192
MAX_HOST_CHARACTERS = 253  # of a name in DNS
MAX_SHOWN_CHARACTERS = 200  # of a refused URL, in messages
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
# At least two letters, because "C:" at the start of a path is a drive.
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)


def url_scheme(value: object) -> str | None:
    """The scheme of a URL in lower case; None for a path or anything else that is not a URL."""
    match = _SCHEME.match(value) if isinstance(value, str) else None
    return match[1].lower() if match else None


def url_problem(url: str) -> str | None:
    """What is wrong with an http or https URL, as in "its port must be …"; None if a request can be sent to it.

    Every URL is checked where it is submitted, so that a job does not fail later because of its spelling.
    """
    if len(url) > MAX_URL_CHARACTERS:
        return f"it must have at most {MAX_URL_CHARACTERS:,} characters"
    if url_scheme(url) not in ("http", "https"):
        return "it must be an http or https URL"
    if _CONTROL_CHARACTER.search(url):
        return "it must not contain control characters"
    try:
        url.encode()  # fails on lone surrogates
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_name = 0 < len(host) <= MAX_HOST_CHARACTERS and host.encode("idna")
    except ValueError:
        is_name = False
    if not is_name:
        return "its host name is not valid"
    try:
        is_port = parts.port != 0
    except ValueError:
        is_port = False
    return None if is_port else "its port must be a number from 1 to 65535"


def require_http(url: str) -> None:
    """Raise `UsageError` unless a request can be sent to this URL."""
    scheme = url_scheme(url)
    if scheme not in ("http", "https"):
        raise UsageError(f"{redact_url(url)}: {scheme} URLs are not supported; give a path or an http or https URL")
    if problem := url_problem(url):
        raise UsageError(f"{redact_url(url)[:MAX_SHOWN_CHARACTERS]} cannot be used: {problem}")


def url_host(url: str) -> str:
    """The host in lower case; empty if there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def redact_url(url: str) -> str:
    """The URL for messages and logs: without credentials, and without the query, which may hold a signature."""
    try:
        return without_credentials(urlsplit(url))._replace(query="").geturl()
    except ValueError:
        return "the given URL"


def without_credentials(parts: SplitResult) -> SplitResult:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="")
