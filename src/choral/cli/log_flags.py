"""Flags of what runs as a service: how its log lines look, and how many there are."""

from __future__ import annotations

import argparse
from typing import get_args

from choral.cli.arguments import describe


def add_log_flags(group: argparse._ArgumentGroup) -> None:
    from choral.common.logs import LogFormat

    formats = get_args(LogFormat)
    group.add_argument(
        "--log-format",
        choices=formats,
        default="text",
        metavar="|".join(formats),
        help=describe("of log lines", "text"),
    )
    group.add_argument("--quiet", action="store_true", help="log only what is wrong")
