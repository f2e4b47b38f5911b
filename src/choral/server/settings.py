"""Settings of the server: frozen, checked, and with the sentence that the command's help prints."""

from __future__ import annotations

from dataclasses import dataclass

from choral.checks import check_fields
from choral.errors import UsageError
from choral.types import option

MIB = 2**20
HOUR_S, DAY_S = 3_600.0, 86_400.0


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    host: str = option("127.0.0.1", "address to listen at; 0.0.0.0 is every network of this machine")
    port: int = option(8000, "port to listen at; 0 takes a free one")
    cors_origins: tuple[str, ...] = option(
        (), "web pages of these origins may use the server, separated by commas", metavar="ORIGIN,…"
    )
    max_upload_bytes: int = option(256 * MIB, "largest request that is taken", metavar="BYTES")
    max_audio_s: float = option(4 * HOUR_S, "longest sound that is taken", metavar="SECONDS")
    uploads: int = option(128, "uploads at once; more are refused before they are read")
    upload_stall_s: float = option(20.0, "longest that a request may stand still on its way", metavar="SECONDS")
    upload_timeout_s: float = option(600.0, "longest that a whole upload may take", metavar="SECONDS")
    at_once: int = option(0, "requests in the engine at once; 0: what suits the device")
    queue_limit: int = option(256, "requests that may be under way or wait; more are refused before they are read")
    realtime_sessions: int = option(64, "live sessions at once; more are refused")
    realtime_message_bytes: int = option(4 * MIB, "largest message of a live session", metavar="BYTES")
    realtime_buffer_s: float = option(300.0, "most live audio of a session that may wait", metavar="SECONDS")
    realtime_idle_s: float = option(600.0, "a live session ends when nothing came for so long", metavar="SECONDS")
    drain_s: float = option(30.0, "after SIGTERM, time to finish what is under way", metavar="SECONDS")

    def __post_init__(self) -> None:
        check_fields(self)
        _require("port", self.port, 0, 65_535)
        _require("max_upload_bytes", self.max_upload_bytes, 1, 2**40)
        _require("max_audio_s", self.max_audio_s, 0.1, 100 * HOUR_S)
        _require("uploads", self.uploads, 1, 65_536)
        _require("upload_stall_s", self.upload_stall_s, 0.1, DAY_S)
        _require("upload_timeout_s", self.upload_timeout_s, 0.1, DAY_S)
        _require("at_once", self.at_once, 0, 4096)
        _require("queue_limit", self.queue_limit, 1, 10**6)
        _require("realtime_sessions", self.realtime_sessions, 1, 65_536)
        _require("realtime_message_bytes", self.realtime_message_bytes, 1024, 2**30)
        _require("realtime_buffer_s", self.realtime_buffer_s, 1, HOUR_S)
        _require("realtime_idle_s", self.realtime_idle_s, 0.1, DAY_S)
        _require("drain_s", self.drain_s, 0, DAY_S)
        for origin in self.cors_origins:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise UsageError(f"origin {origin!r} must look like https://example.org, or be * for every page")


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}")
