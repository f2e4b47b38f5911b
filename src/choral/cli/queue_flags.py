"""The flags of commands that talk to the queue, and the client that they name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from choral.jobs.sync_client import Client


def add_redis_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--redis",
        metavar="URL",
        help="redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss:// or unix:// (default: CHORAL_REDIS, or "
        "redis://localhost:6379); with a password better CHORAL_REDIS: others on the machine see command lines",
    )
    group.add_argument(
        "--namespace", default="choral", metavar="NAME", help="prefix of all keys in Redis (default: choral)"
    )


def open_client(arguments: argparse.Namespace) -> Client:
    from choral.jobs import Client, ClientSettings

    return Client(arguments.redis, ClientSettings(namespace=arguments.namespace))
