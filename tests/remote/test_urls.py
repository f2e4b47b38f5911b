"""URLs from users: their scheme, and messages without secrets."""

from __future__ import annotations

import pytest

from choral.errors import UsageError
from choral.remote.urls import redact_url, require_http, url_scheme


@pytest.mark.parametrize(
    ("value", "scheme"),
    [
        ("https://example.org/a.wav", "https"),
        ("HTTP://example.org", "http"),
        ("s3://bucket/key", "s3"),
        ("a+b.c-1://x", "a+b.c-1"),
        ("C:\\talk.mp3", None),
        ("c://talk.mp3", None),
        ("talks/http://x", None),
        ("", None),
        (b"https://example.org", None),
        (None, None),
    ],
)
def test_url_scheme(value: object, scheme: str | None) -> None:
    assert url_scheme(value) == scheme


@pytest.mark.parametrize("url", ["http://example.org/a", "HTTPS://example.org/a"])
def test_http_and_https_are_accepted(url: str) -> None:
    require_http(url)


def test_other_schemes_are_refused_without_printing_secrets() -> None:
    with pytest.raises(UsageError) as caught:
        require_http("ftp://me:pw@host/a.wav?token=1")
    assert str(caught.value) == "ftp://host/a.wav: ftp URLs are not supported; give a path or an http or https URL"


def test_redact_url() -> None:
    assert redact_url("https://me:pw@host:81/a/b?token=1#x") == "https://host:81/a/b"
    assert redact_url("http://[::1") == "the given URL"
