"""Settings of the HTTP server: frozen and validated, with the help text that the command line prints."""

from __future__ import annotations

from dataclasses import dataclass

from choral.errors import UsageError
from choral.types import option
from choral.validation import check_fields

MIB = 2**20
HOUR_S, DAY_S = 3_600.0, 86_400.0


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 listens on every network interface")
    port: int = option(8000, "port to listen on; 0 picks a free one", within=(0, 65_535))
    cors_origins: tuple[str, ...] = option(
        (), "origins of web pages that may use the server, separated by commas", metavar="ORIGIN,…"
    )
    max_upload_bytes: int = option(256 * MIB, "largest accepted request", metavar="BYTES", within=(1, 2**40))
    max_audio_s: float = option(4 * HOUR_S, "longest accepted audio", metavar="SECONDS", within=(0.1, 100 * HOUR_S))
    uploads: int = option(128, "concurrent uploads; more are refused before they are read", within=(1, 65_536))
    upload_stall_s: float = option(
        20.0, "longest pause between two parts of a request body", metavar="SECONDS", within=(0.1, DAY_S)
    )
    upload_timeout_s: float = option(
        600.0, "longest time a whole upload may take", metavar="SECONDS", within=(0.1, DAY_S)
    )
    at_once: int = option(0, "concurrent requests in the engine; 0: chosen for the device", within=(0, 4096))
    queue_limit: int = option(
        256, "requests that may be running or waiting; more are refused before they are read", within=(1, 10**6)
    )
    realtime_sessions: int = option(64, "concurrent live sessions; more are refused", within=(1, 65_536))
    realtime_message_bytes: int = option(
        4 * MIB, "largest message of a live session", metavar="BYTES", within=(1024, 2**30)
    )
    realtime_buffer_s: float = option(
        300.0, "most unprocessed audio a live session may buffer", metavar="SECONDS", within=(1, HOUR_S)
    )
    realtime_idle_s: float = option(
        600.0, "close a live session that received nothing for this long", metavar="SECONDS", within=(0.1, DAY_S)
    )
    drain_s: float = option(30.0, "time to finish running requests after SIGTERM", metavar="SECONDS", within=(0, DAY_S))

    def __post_init__(self) -> None:
        check_fields(self)
        for origin in self.cors_origins:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise UsageError(f"origin {origin!r} must look like https://example.org, or be * for every origin")
