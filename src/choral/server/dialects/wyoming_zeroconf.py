"""Announces the port of Wyoming by zeroconf, so that Home Assistant finds it: `_wyoming._tcp.local.`"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import gethostname, socket

from choral.errors import MissingDependency

try:
    import ifaddr
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf
except ImportError as missing:
    raise MissingDependency(
        "--wyoming-zeroconf needs the package zeroconf: pip install 'choral[zeroconf]'"
    ) from missing

SERVICE = "_wyoming._tcp.local."


@asynccontextmanager
async def announced(bound: socket) -> AsyncIterator[None]:
    """Tell the local networks of this socket's port until the exit."""
    host, port = bound.getsockname()[:2]
    address = ipaddress.ip_address(host)
    hosts = _own_addresses() if address.is_unspecified else [host]
    name = f"choral-{gethostname().partition('.')[0]}-{port}"
    info = AsyncServiceInfo(SERVICE, f"{name}.{SERVICE}", port=port, parsed_addresses=hosts, server=f"{name}.local.")
    zeroconf = AsyncZeroconf() if address.is_unspecified else AsyncZeroconf(interfaces=[host])
    try:
        await zeroconf.async_register_service(info)
        yield
    finally:
        await zeroconf.async_unregister_all_services()
        await zeroconf.async_close()


def _own_addresses() -> list[str]:
    """IPv4 addresses of this machine that others can reach."""
    found = [str(ip.ip) for adapter in ifaddr.get_adapters() for ip in adapter.ips if ip.is_IPv4]
    return [each for each in found if not ipaddress.ip_address(each).is_loopback]
