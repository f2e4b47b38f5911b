"""URLs as users give them: distinguish them from paths, accept only http and https, and print them without secrets."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from choral.errors import UsageError

# At least two letters, because "C:" at the start of a path is a drive.
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)


def url_scheme(value: object) -> str | None:
    """The scheme of a URL in lower case; None for a path or anything else that is not a URL."""
    match = _SCHEME.match(value) if isinstance(value, str) else None
    return match[1].lower() if match else None


def require_http(url: str) -> None:
    scheme = url_scheme(url)
    if scheme not in ("http", "https"):
        raise UsageError(f"{redact_url(url)}: {scheme} URLs are not supported; give a path or an http or https URL")


def redact_url(url: str) -> str:
    """The URL for messages and logs: without credentials, and without the query, which may hold a signature."""
    try:
        return without_credentials(urlsplit(url))._replace(query="").geturl()
    except ValueError:
        return "the given URL"


def without_credentials(parts: SplitResult) -> SplitResult:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="")
