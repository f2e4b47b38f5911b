"""Protects a server from web pages of other sites, which can make a visitor's browser send requests to it.

DNS rebinding: the host name of a page is made to resolve to this server's address, so that the browser takes the server
for the page's own; the `Host` header still has that name. Cross-site requests: browsers send forms and open WebSockets
to any address, with the page in `Origin` and `Sec-Fetch-Site`. Clients that are no browsers send neither header.

A page of another site does not know the API key. With keys, any host name is accepted unless names are configured, and
only WebSockets are checked for their origin.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from choral.server.api_errors import ApiError
from choral.server.settings import ServerSettings

ANY = "*"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = "/health"  # load balancers use any name, and the answer is one word
# Nobody outside the network can make these resolve to an address in it; inside it, the server can be reached anyway.
LOCAL_SUFFIXES = (".local", ".lan", ".internal", ".home.arpa")
MAX_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class CrossSitePolicy:
    trusted_hosts: tuple[str, ...]
    cors_origins: tuple[str, ...]
    has_keys: bool
    is_loopback: bool  # whether the server listens on this machine only
    own_names: frozenset[str]

    @classmethod
    def of(cls, settings: ServerSettings, *, has_keys: bool) -> CrossSitePolicy:
        bound = settings.host.lower()
        names = {"localhost", bound, socket.gethostname().lower()}
        hosts = tuple(host.lower().strip("[]") for host in settings.trusted_hosts)
        return cls(hosts, settings.cors_origins, has_keys, _is_loopback(bound), frozenset(names))

    def check(self, request: HTTPConnection) -> None:
        """Raise a 403 for a request that may come from a page of another site."""
        if not request.scope["path"].startswith(OPEN_PATHS):
            self._check_host(request.headers.get("host", ""))
        is_websocket = request.scope["type"] == "websocket"
        if is_websocket or (not self.has_keys and request.scope["method"] not in SAFE_METHODS):
            self._check_origin(request)

    def _check_host(self, header: str) -> None:
        if not header or not self._is_checked:  # browsers always send a Host
            return
        host = _host_of(header)
        if host is None or not (self._is_own(host) or self._is_trusted(host)):
            name = header[:MAX_SHOWN_CHARACTERS]
            raise ApiError(
                f"this server is not known as {name}: start it with --trusted-hosts {host or 'NAME'}, "
                "or use its address",
                status=403,
                code="host_not_allowed",
            )

    @property
    def _is_checked(self) -> bool:
        return bool(self.trusted_hosts) or not self.has_keys

    def _check_origin(self, request: HTTPConnection) -> None:
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        if ANY in self.cors_origins or origin in self.cors_origins:
            return
        if origin is None and site != "cross-site":
            return
        if origin is not None and site != "cross-site":
            netloc = _netloc(origin)
            host = _host_of(netloc) if netloc else None
            if netloc and netloc == request.headers.get("host", "").lower():
                return
            if host is not None and self._is_trusted(host):  # a proxy may have replaced the Host
                return
        page = (origin or "another site")[:MAX_SHOWN_CHARACTERS]
        raise ApiError(
            f"pages of {page} may not use this server: start it with --cors-origins {page}",
            status=403,
            code="origin_not_allowed",
        )

    def _is_own(self, host: str) -> bool:
        if host in self.own_names or host.endswith(".localhost"):
            return True
        if self.is_loopback:
            return _is_loopback(host)
        return "." not in host or host.endswith(LOCAL_SUFFIXES) or _is_address(host)

    def _is_trusted(self, host: str) -> bool:
        return any(
            rule in (ANY, host) or (rule.startswith("*.") and host.endswith(rule[1:])) for rule in self.trusted_hosts
        )


def _netloc(origin: str) -> str | None:
    """The host and port of an origin; None for `null` and whatever is no address."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _host_of(netloc: str) -> str | None:
    """The name or address in a `Host` header, without its port; None if it is malformed."""
    try:
        parts = urlsplit(f"//{netloc}")
        parts.port  # noqa: B018  raises ValueError
        is_plain = parts.netloc == netloc and parts.username is None
    except ValueError:
        return None
    return parts.hostname.rstrip(".") or None if is_plain and parts.hostname else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
