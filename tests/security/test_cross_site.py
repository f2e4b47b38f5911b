"""Requests that a browser sends for pages of other sites, and those that must keep working."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import HTTPConnection
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from attack_probe import under_attack
from choral.errors import UsageError
from choral.server.api_errors import ApiError
from choral.server.cross_site import CrossSitePolicy
from choral.server.settings import ServerSettings
from serve_process import ServeProcess, running

ROUTE = "/v1/audio/transcriptions"
EVIL = "https://evil.example"


@pytest.fixture(scope="module")
def named(tiny_en_pt: Path) -> Iterator[ServeProcess]:
    """A server behind a proxy and without keys, used by one other site."""
    with running(
        "--model", tiny_en_pt, "--processes", 1, "--threads", 1, "--trusted-hosts", "speech.example.org",
        "--cors-origins", "https://notes.example",
    ) as started:  # fmt: skip
        yield started


def post(server: ServeProcess, speech: Path, **headers: str) -> httpx.Response:
    with speech.open("rb") as file:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(
            server.url + ROUTE, files={"file": file}, data={"model": "whisper-1"}, headers=names, timeout=60
        )


def code(answer: httpx.Response) -> str:
    assert answer.status_code == 403, answer.text
    return str(answer.json()["error"]["code"])


def test_pages_of_other_sites_cannot_submit(server: ServeProcess, jfk: Path) -> None:
    address = server.url.removeprefix("http://")
    with under_attack(server, jfk):
        for headers in (
            {"origin": EVIL},
            {"origin": "null"},
            {"origin": f"https://{address}.evil.example"},
            {"origin": f"http://evil@{address}"},
            {"origin": "http://localhost:1"},
            {"sec_fetch_site": "cross-site"},
            {"origin": f"http://{address}", "sec_fetch_site": "cross-site"},
        ):
            assert code(post(server, jfk, **headers)) == "origin_not_allowed", headers
        for method, path in (("POST", "/v1/jobs"), ("DELETE", "/v1/jobs/1"), ("PUT", "/v1/jobs")):
            assert code(httpx.request(method, server.url + path, headers={"origin": EVIL})) == "origin_not_allowed"


def test_rebound_names_are_refused(server: ServeProcess, jfk: Path) -> None:
    port = server.url.rpartition(":")[2]
    with under_attack(server, jfk):
        for name in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "a@b",
            "[",
        ):
            for path in ("/", "/v1/models", "/v1/jobs", "/v1/engine", "/metrics", "/openapi.json"):
                assert code(httpx.get(server.url + path, headers={"host": name})) == "host_not_allowed"
            assert code(post(server, jfk, host=name, origin=f"http://{name}")) == "host_not_allowed"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost"},
        {"host": "localhost:9000"},  # a tunnel
        {"host": "LOCALHOST."},
        {"host": "choral.localhost"},
        {"host": "[::1]:8000", "origin": "http://[::1]:8000"},
        {"host": "127.0.0.1:1", "origin": "http://127.0.0.1:1", "sec_fetch_site": "same-origin"},  # the page
        {"sec_fetch_site": "none"},
    ],
)
def test_local_clients_are_served(server: ServeProcess, jfk: Path, headers: dict[str, str]) -> None:
    answer = post(server, jfk, **headers)
    assert "country" in answer.json()["text"]


def test_websockets_of_other_sites_are_refused(server: ServeProcess) -> None:
    url = f"{server.url.replace('http', 'ws')}/v1/realtime?intent=transcription"
    for settings, expected in (
        ({"origin": EVIL}, "origin_not_allowed"),
        ({"origin": "null"}, "origin_not_allowed"),
        ({"additional_headers": {"Sec-Fetch-Site": "cross-site"}}, "origin_not_allowed"),
    ):
        with pytest.raises(InvalidStatus) as refused, connect(url, **settings):  # type: ignore[arg-type]
            pass
        assert refused.value.response.status_code == 403
        assert expected.encode() in refused.value.response.body
    with connect(url, origin=server.url):  # type: ignore[arg-type]
        pass
    with connect(url):
        pass


def test_names_of_a_proxy_and_other_origins_can_be_allowed(named: ServeProcess, jfk: Path) -> None:
    for headers in (
        {"host": "speech.example.org", "origin": "https://speech.example.org"},
        {"origin": "https://speech.example.org"},  # the proxy replaced the Host
        {"origin": "https://notes.example", "sec_fetch_site": "cross-site"},
        {},
    ):
        assert post(named, jfk, **headers).status_code == 200, headers
    assert code(post(named, jfk, origin=EVIL)) == "origin_not_allowed"
    assert code(post(named, jfk, host="evil.example")) == "host_not_allowed"
    with jfk.open("rb") as file, named.client() as client:
        assert client.audio.transcriptions.create(file=file, model="whisper-1").text


# --- the policy by itself ---


def request(host: str = "", path: str = "/v1/models", method: str = "GET", kind: str = "http", **more: str) -> Any:
    headers = {"host": host, **{name.replace("_", "-"): value for name, value in more.items()}}
    raw = [(name.encode(), value.encode()) for name, value in headers.items() if value]
    return HTTPConnection({"type": kind, "path": path, "method": method, "headers": raw})


def is_allowed(policy: CrossSitePolicy, asked: HTTPConnection) -> bool:
    try:
        policy.check(asked)
    except ApiError as error:
        return error.http_status != 403
    return True


@pytest.mark.parametrize(
    ("bound", "host", "with_keys", "allowed"),
    [
        ("127.0.0.1", "192.168.1.7:8000", False, False),
        ("127.0.0.1", "gpu-box", False, False),
        ("localhost", "127.0.0.1", False, True),
        ("::1", "[::1]:8000", False, True),
        ("127.0.0.1", "speech.example.org", True, True),  # nobody without the key gets in
        ("0.0.0.0", "192.168.1.7:8000", False, True),  # an address cannot be rebound
        ("0.0.0.0", "[fd00::1]:8000", False, True),
        ("0.0.0.0", "choral:8000", False, True),  # the name of a container
        ("0.0.0.0", "gpu-box.local:8000", False, True),
        ("0.0.0.0", "evil.example:8000", False, False),
        ("0.0.0.0", "local.evil.example", False, False),
        ("0.0.0.0", "evil.example:8000", True, True),
        ("speech.example.org", "speech.example.org:8000", False, True),
        ("192.168.1.7", "localhost", False, True),
    ],
)
def test_hosts_by_default(bound: str, host: str, with_keys: bool, allowed: bool) -> None:
    policy = CrossSitePolicy.of(ServerSettings(host=bound), has_keys=with_keys)
    assert is_allowed(policy, request(host)) is allowed
    assert is_allowed(policy, request(host, "/health/ready"))  # load balancers use any name


def test_trusted_hosts() -> None:
    settings = ServerSettings(trusted_hosts=("speech.example.org", "*.example.net", "[fd00::1]"))
    for has_keys in (False, True):
        policy = CrossSitePolicy.of(settings, has_keys=has_keys)
        for host in ("speech.example.org", "SPEECH.example.org:443", "a.b.example.net", "[fd00::1]:80", "localhost"):
            assert is_allowed(policy, request(host)), host
        for host in ("example.org", "example.net", "evilexample.net", "speech.example.org.evil.example"):
            assert not is_allowed(policy, request(host)), host
    anything = CrossSitePolicy.of(ServerSettings(trusted_hosts=("*",)), has_keys=False)
    assert is_allowed(anything, request("evil.example"))
    for wrong in ("https://example.org", "example.org:80", "", "a b", "*.*.org"):
        with pytest.raises(UsageError, match="trusted host"):
            ServerSettings(trusted_hosts=(wrong,))


def test_origins_with_keys() -> None:
    """A page that knows the key may use it; a WebSocket is checked all the same, as its key may be a stored one."""
    policy = CrossSitePolicy.of(ServerSettings(), has_keys=True)
    assert is_allowed(policy, request(method="POST", origin="chrome-extension://abc", sec_fetch_site="cross-site"))
    assert not is_allowed(policy, request("localhost:8000", kind="websocket", origin=EVIL))
    every = CrossSitePolicy.of(ServerSettings(cors_origins=("*",)), has_keys=False)
    assert is_allowed(every, request("localhost", kind="websocket", origin=EVIL, sec_fetch_site="cross-site"))
