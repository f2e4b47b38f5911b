"""URLs from users: their scheme, what is wrong with them, and messages without secrets."""

from __future__ import annotations

import pytest

from choral.errors import UsageError
from choral.remote.urls import MAX_URL_CHARACTERS, redact_url, require_http, url_host, url_problem, url_scheme


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


@pytest.mark.parametrize(
    ("url", "host"),
    [("http://u:p@A.example:80/x", "a.example"), ("https://b.example?x", "b.example"), ("http://[::1/x", "")],
)
def test_url_host(url: str, host: str) -> None:
    assert url_host(url) == host


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


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org",
        "https://me:pw@example.org:8080/a b/ü.wav?x=1#y",
        "HTTPS://EXAMPLE.org./a",
        "http://[::1]:80/",
        "http://bücher.example/a.wav",
        "http://127.1/",
        "http://example.org/" + "a" * 2000,
    ],
)
def test_valid_urls(url: str) -> None:
    assert url_problem(url) is None


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://127.0.0.1:99999999999999999999/", "its port must be a number from 1 to 65535"),
        ("http://127.0.0.1:65536/", "its port must be a number from 1 to 65535"),
        ("http://127.0.0.1:0/", "its port must be a number from 1 to 65535"),
        ("http://127.0.0.1:-1/", "its port must be a number from 1 to 65535"),
        ("http://127.0.0.1:http/", "its port must be a number from 1 to 65535"),
        ("http://127.0.0.1:" + "9" * 5000, "its port must be a number from 1 to 65535"),
        ("http://", "its host name is not valid"),
        ("http:///a", "its host name is not valid"),
        ("http://:80/", "its host name is not valid"),
        ("http://[::1", "its host name is not valid"),
        ("http://a..b/", "its host name is not valid"),
        (f"http://{'a' * 64}.example/", "its host name is not valid"),
        (f"http://{'a.' * 130}example/", "its host name is not valid"),
        ("http://exa\u2100mple/", "its host name is not valid"),
        ("http://example.org/\ud800", "its host name is not valid"),
        ("http://example.org/a\r\nHost: other", "it must not contain control characters"),
        ("http://example.org/\0", "it must not contain control characters"),
        ("ftp://example.org/", "it must be an http or https URL"),
        ("example.org", "it must be an http or https URL"),
        ("http://example.org/" + "a" * MAX_URL_CHARACTERS, "it must have at most 8,192 characters"),
    ],
)
def test_urls_that_no_request_can_be_sent_to(url: str, problem: str) -> None:
    assert url_problem(url) == problem
    if "http" in url[:4]:
        with pytest.raises(UsageError):
            require_http(url)
