"""How many downloads of one host run at once, and which host a URL names."""

from __future__ import annotations

import pytest

from choral.serving.host_limiter import HostLimiter, host_of


def test_host_limiter_starts_waiting_work_in_order() -> None:
    limiter, started = HostLimiter(2), []
    for i in range(4):
        limiter.acquire("a", lambda i=i: started.append(i))  # type: ignore[misc]
    limiter.acquire("b", lambda: started.append("b"))
    assert started == [0, 1, "b"]
    limiter.release("a")
    assert started == [0, 1, "b", 2]
    limiter.release("a")
    limiter.release("a")
    limiter.release("a")
    limiter.release("b")
    assert started == [0, 1, "b", 2, 3]
    limiter.acquire("a", lambda: started.append("again"))
    assert started[-1] == "again"


@pytest.mark.parametrize(
    ("url", "host"),
    [("http://u:p@A.example:80/x", "a.example:80"), ("https://b.example?x", "b.example"), ("http://[::1/x", "")],
)
def test_host_of(url: str, host: str) -> None:
    assert host_of(url) == host
