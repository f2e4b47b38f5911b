"""Protection against server-side request forgery: which addresses a request may reach, and handlers that enforce it.

Requests may reach public addresses, and hosts or networks that the operator allows. The check is made on the resolved
addresses, and the connection goes to one that passed it, so neither the spelling of an address, nor a redirect, nor
DNS rebinding gets around it. Proxies are not used, because a proxy resolves names itself. Error texts name the host
and never the address behind it, so that clients cannot map the network.
"""

from __future__ import annotations

import socket
import ssl
import urllib.request as web
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from choral.errors import UsageError
from choral.remote.abort_handle import AbortHandle

IpAddress = IPv4Address | IPv6Address
SocketAddress = tuple[socket.AddressFamily, tuple[Any, ...]]  # (AF_INET, ("192.0.2.1", 80))
Resolve = Callable[[str, int], Iterable[SocketAddress]]

_NOT_PUBLIC_V4 = tuple(
    IPv4Network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # looks public, but is Azure's service address for its own machines
    )
)
_PUBLIC_V6 = IPv6Network("2000::/3")
# Protocol assignments, which include Teredo tunnels, and two documentation ranges.
_NOT_PUBLIC_V6 = tuple(IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "3fff::/20"))
_NAT64 = IPv6Network("64:ff9b::/96")


class AddressRefused(Exception):
    """The text names the host and says how the operator can allow it."""


@dataclass(frozen=True)
class _Rule:
    host: str | None
    network: IPv4Network | IPv6Network | None
    port: int | None  # None: any port

    def matches(self, host: str, address: IpAddress, port: int) -> bool:
        if self.port not in (None, port):
            return False
        return host == self.host if self.network is None else address in self.network


def resolve(host: str, port: int) -> list[SocketAddress]:
    results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, tuple(address)) for family, _, _, _, address in results]


@dataclass(frozen=True)
class SsrfGuard:
    """`allowed_hosts`: names and addresses, with or without a port, and networks.

    Examples: "files.lan", "10.1.2.3:8080", "10.0.0.0/8". An allowed name may resolve to any address; its subdomains
    are not allowed with it.
    """

    allowed_hosts: tuple[str, ...] = ()
    resolve: Resolve = resolve
    _rules: tuple[_Rule, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rules", tuple(map(_parse_rule, self.allowed_hosts)))

    def connect(self, host: str, port: int, timeout_s: float | None) -> socket.socket:
        """Connect to the first permitted address of `host` that answers."""
        failure: OSError | None = None
        for family, address in self._permitted(host, port):
            connection = socket.socket(family, socket.SOCK_STREAM)
            try:
                connection.settimeout(timeout_s)
                connection.connect(address)
                return connection
            except OSError as error:
                connection.close()
                failure = error
        if failure is not None:
            raise failure
        raise AddressRefused(
            f"{host} is not a host on the public internet; the operator of this service can add it to the allowed hosts"
        )

    def permits(self, host: str, address: IpAddress, port: int) -> bool:
        embedded = _embedded_ipv4(address)
        name = _normalize_host(host)
        return is_public(address) or any(
            rule.matches(name, candidate, port) for rule in self._rules for candidate in (address, embedded)
        )

    def _permitted(self, host: str, port: int) -> Iterator[SocketAddress]:
        for family, address in self.resolve(host, port):
            is_internet = family in (socket.AF_INET, socket.AF_INET6)
            if is_internet and self.permits(host, ip_address(str(address[0])), port):
                yield family, address


def is_public(address: IpAddress) -> bool:
    """Whether the address is on the public internet: not of this machine, its network, its cloud or a protocol."""
    address = _embedded_ipv4(address)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    return address in _PUBLIC_V6 and not any(address in network for network in _NOT_PUBLIC_V6)


def _embedded_ipv4(address: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 address embeds (NAT64, mapped, 6to4), else the address itself."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _normalize_host(host: str) -> str:
    name = host.lower().removesuffix(".")
    return name if name.isascii() else name.encode("idna").decode()


def _parse_rule(allowed: str) -> _Rule:
    try:
        if "/" in allowed:
            return _Rule(None, ip_network(allowed), None)
        is_bare_v6 = allowed.count(":") > 1 and not allowed.startswith("[")
        parts = urlsplit(f"//[{allowed}]" if is_bare_v6 else f"//{allowed}")
        host, port = parts.hostname, parts.port
        if not host or parts.netloc != parts.geturl()[2:] or set(allowed) & set("*@ "):
            raise ValueError("not a name")
    except ValueError as error:
        raise UsageError(
            f"allowed host {allowed!r} ({error}): give a host, host:port or network, "
            "as in files.example.org, 10.1.2.3:8080 or 10.0.0.0/8"
        ) from error
    try:
        return _Rule(None, ip_network(host), port)
    except ValueError:
        return _Rule(_normalize_host(host), None, port)


class _GuardedHttp(HTTPConnection):
    def __init__(self, host: str, *, guard: SsrfGuard, abort_handle: AbortHandle, **settings: Any) -> None:
        super().__init__(host, **settings)
        self._guard, self._abort_handle = guard, abort_handle

    def connect(self) -> None:
        self.sock = self._guard.connect(self.host, self.port, self.timeout)
        self._abort_handle.attach(self.sock)


class _GuardedHttps(HTTPSConnection):
    def __init__(
        self, host: str, *, guard: SsrfGuard, abort_handle: AbortHandle, context: ssl.SSLContext, **settings: Any
    ) -> None:
        super().__init__(host, context=context, **settings)
        self._guard, self._abort_handle, self._tls = guard, abort_handle, context

    def connect(self) -> None:
        plain = self._guard.connect(self.host, self.port, self.timeout)
        # The handshake comes after `attach`, so that it can be aborted too.
        self.sock: socket.socket = self._tls.wrap_socket(
            plain, server_hostname=self.host, do_handshake_on_connect=False
        )
        self._abort_handle.attach(self.sock)
        self.sock.do_handshake()


class GuardedHandler(web.HTTPHandler):
    def __init__(self, guard: SsrfGuard, abort_handle: AbortHandle) -> None:
        super().__init__()
        self._connection = partial(_GuardedHttp, guard=guard, abort_handle=abort_handle)

    def http_open(self, req: web.Request) -> HTTPResponse:
        return self.do_open(self._connection, req)


class GuardedTlsHandler(web.AbstractHTTPHandler):
    https_request = web.AbstractHTTPHandler.do_request_

    def __init__(self, guard: SsrfGuard, abort_handle: AbortHandle, tls_context: Callable[[], ssl.SSLContext]) -> None:
        super().__init__()
        self._connection = partial(_GuardedHttps, guard=guard, abort_handle=abort_handle)
        self._tls_context = tls_context

    def https_open(self, req: web.Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, context=self._tls_context()), req)
