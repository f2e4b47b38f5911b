"""Where a guarded request may go: to public addresses, and to what the operator allows by name or network.

The check is made on the addresses that a name leads to, and the connection goes to one of those that passed, so it
does not matter how an address is spelled, where a redirect points, or whether a name leads elsewhere a moment later.
Texts name the host and never the address behind it: who may ask for anything must not learn a network's plan.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from choral.errors import UsageError

AnyAddress = IPv4Address | IPv6Address
Place = tuple[socket.AddressFamily, tuple[Any, ...]]  # what a socket connects to: (AF_INET, ("192.0.2.1", 80))
Resolve = Callable[[str, int], Iterable[Place]]

_NOT_PUBLIC_V4 = tuple(
    IPv4Network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # looks public, and is a cloud's own service to its machines
    )
)
_PUBLIC_V6 = IPv6Network("2000::/3")
# Protocols' own addresses with Teredo's tunnels among them, and two ranges for documentation.
_NOT_PUBLIC_V6 = tuple(IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "3fff::/20"))
_NAT64 = IPv6Network("64:ff9b::/96")


class AddressRefused(Exception):
    """The text names the host and says how its operator opens it."""


@dataclass(frozen=True)
class _Rule:
    host: str | None  # as it stands in addresses
    network: IPv4Network | IPv6Network | None
    port: int | None  # None: all

    def opens(self, host: str, address: AnyAddress, port: int) -> bool:
        if self.port not in (None, port):
            return False
        return host == self.host if self.network is None else address in self.network


def resolve(host: str, port: int) -> list[Place]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, tuple(place)) for family, _, _, _, place in found]


@dataclass(frozen=True)
class Guard:
    """`allowed_hosts`: names, addresses, either with a port, and networks ("files.lan", "10.1.2.3:8080", "10.0.0.0/8").

    A name that is allowed may lead anywhere; a name below it is another name.
    """

    allowed_hosts: tuple[str, ...] = ()
    resolve: Resolve = resolve
    _rules: tuple[_Rule, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rules", tuple(map(_rule, self.allowed_hosts)))

    def connect(self, host: str, port: int, timeout_s: float | None) -> socket.socket:
        """A connection to the first address of `host` that may be reached and answers."""
        failure: OSError | None = None
        for family, place in self._permitted(host, port):
            connection = socket.socket(family, socket.SOCK_STREAM)
            try:
                connection.settimeout(timeout_s)
                connection.connect(place)
                return connection
            except OSError as error:
                connection.close()
                failure = error
        if failure is not None:
            raise failure
        raise AddressRefused(
            f"{host} is not a host on the public internet; "
            "whoever runs this service can open it by putting it among the allowed hosts"
        )

    def permits(self, host: str, address: AnyAddress, port: int) -> bool:
        plain = _unwrapped(address)
        name = _spelled(host)
        return is_public(plain) or any(
            rule.opens(name, seen, port) for rule in self._rules for seen in (address, plain)
        )

    def _permitted(self, host: str, port: int) -> Iterator[Place]:
        for family, place in self.resolve(host, port):
            is_internet = family in (socket.AF_INET, socket.AF_INET6)
            if is_internet and self.permits(host, ip_address(str(place[0])), port):
                yield family, place


def is_public(address: AnyAddress) -> bool:
    """Whether it belongs to anyone on the internet, not to this machine, its network, its cloud or a protocol."""
    plain = _unwrapped(address)
    if isinstance(plain, IPv4Address):
        return not any(plain in network for network in _NOT_PUBLIC_V4)
    return plain in _PUBLIC_V6 and not any(plain in network for network in _NOT_PUBLIC_V6)


def _unwrapped(address: AnyAddress) -> AnyAddress:
    """The IPv4 address that an IPv6 one stands for, where it does."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _spelled(host: str) -> str:
    plain = host.lower().removesuffix(".")
    return plain if plain.isascii() else plain.encode("idna").decode()


def _rule(allowed: str) -> _Rule:
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
        return _Rule(_spelled(host), None, port)
