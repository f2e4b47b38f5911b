"""Settings of the HTTP server and of its jobs: frozen and validated, with the help text of the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

from choral.common.sizes import parse_duration_s, parse_size
from choral.errors import UsageError
from choral.jobs.job_states import KEEP_S, RETRY_S
from choral.validation import check_fields, option

MIB = 2**20
HOUR_S, DAY_S = 3_600.0, 86_400.0
_TRUSTED_HOST = re.compile(r"\*|(\*\.)?[\w-]+(\.[\w-]+)*|\[[0-9a-fA-F:.]+\]")
UnknownFields = Literal["refuse", "warn"]
Dialect = Literal["asr", "whisper-cpp", "deepgram", "wyoming"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
ALL_DIALECTS, NO_DIALECTS = "all", "none"
REDIS_VARIABLE, FROM_ENVIRONMENT = "CHORAL_REDIS", "env"


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 listens on every network interface")
    port: int = option(8000, "port to listen on; 0 picks a free one", within=(0, 65_535))
    cors_origins: tuple[str, ...] = option(
        (), "origins of web pages that may use the server, separated by commas", metavar="ORIGIN,…"
    )
    trusted_hosts: tuple[str, ...] = option(
        (),
        "names under which clients reach the server, for example through a proxy, separated by commas; "
        "*.example.org includes subdomains, * is any (default: without keys local names and addresses, else any)",
        metavar="HOST,…",
    )
    alias: tuple[str, ...] = option(
        (), "further names of the models for clients, separated by commas", metavar="NAME=MODEL,…"
    )
    any_model: bool = option(False, "answer to every model name; unknown ones are the first model")
    pin: tuple[str, ...] = option(
        (), "models that are loaded at the start and never unloaded, separated by commas", metavar="NAME,…"
    )
    idle_unload: str = option(
        "0", "unload a model that nobody used for this long, for example 10m; 0: never", metavar="DURATION"
    )
    models_memory: str = option(
        "0",
        "memory for all models, for example 8GB: the one that was idle longest is unloaded for another; 0: no limit",
        metavar="SIZE",
    )
    unknown_fields: UnknownFields = option(
        "warn", "what a transcription request with unknown fields gets: a Warning header that names them, or a 400"
    )
    dialects: tuple[str, ...] = option(
        ("asr", "whisper-cpp", "deepgram"),
        f"protocols of other servers to speak beside OpenAI's, separated by commas: {', '.join(DIALECTS)}; "
        "all, or none (default: asr,whisper-cpp,deepgram)",
        metavar="NAME,…",
    )
    wyoming_port: int = option(
        10_300, "port of the dialect wyoming, which has no keys; 0 picks a free one", within=(0, 65_535)
    )
    wyoming_zeroconf: bool = option(False, "announce the port of the dialect wyoming in the local networks")
    max_upload_bytes: int = option(256 * MIB, "largest accepted request", metavar="BYTES", within=(1, 2**40))
    max_audio_s: float = option(4 * HOUR_S, "longest accepted audio", metavar="SECONDS", within=(0.1, 100 * HOUR_S))
    uploads: int = option(128, "concurrent uploads; more are refused before they are read", within=(1, 65_536))
    upload_stall_s: float = option(
        20.0, "longest pause in a request, and longest time for its headers", metavar="SECONDS", within=(0.1, DAY_S)
    )
    upload_timeout_s: float = option(
        600.0, "longest time a whole upload may take", metavar="SECONDS", within=(0.1, DAY_S)
    )
    upload_min_rate: int = option(
        16 * 1024,
        "bytes per second below which an upload loses its place to a new one when --uploads are in progress",
        metavar="BYTES",
        within=(0, 2**40),
    )
    connections: int = option(4096, "open connections; more close the oldest one without a request", within=(16, 10**6))
    response_stall_s: float = option(
        60.0, "longest time a client may leave a response unread", metavar="SECONDS", within=(0.1, DAY_S)
    )
    at_once: int = option(0, "concurrent requests in the engine; 0: chosen for the device", within=(0, 4096))
    queue_limit: int = option(
        256, "requests that may be running or waiting; more are refused before they are read", within=(1, 10**6)
    )
    realtime_sessions: int = option(64, "concurrent live sessions; more are refused", within=(1, 65_536))
    realtime_processes: int = option(
        -1,
        "processes for live sessions; 0: they run in the server's own "
        "(default: one for each CPU core but one with a GPU, else 0)",
        metavar="N",
        within=(-1, 4096),
    )
    realtime_message_bytes: int = option(
        4 * MIB, "largest message of a live session", metavar="BYTES", within=(1024, 2**30)
    )
    realtime_buffer_s: float = option(
        300.0, "maximum unprocessed audio that a live session may buffer", metavar="SECONDS", within=(1, HOUR_S)
    )
    realtime_idle_s: float = option(
        600.0, "close a live session that received nothing for this long", metavar="SECONDS", within=(0.1, DAY_S)
    )
    realtime_send_s: float = option(
        20.0, "close a live session whose client does not read for this long", metavar="SECONDS", within=(0.1, DAY_S)
    )
    drain_s: float = option(30.0, "time to finish running requests after SIGTERM", metavar="SECONDS", within=(0, DAY_S))

    def __post_init__(self) -> None:
        check_fields(self)
        for dialect in self.dialects:
            if dialect not in (*DIALECTS, ALL_DIALECTS, NO_DIALECTS):
                raise UsageError(f"there is no dialect {dialect!r}: choose from {', '.join(DIALECTS)}, all, or none")
        for origin in self.cors_origins:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise UsageError(f"origin {origin!r} must look like https://example.org, or be * for every origin")
        for host in self.trusted_hosts:
            if not _TRUSTED_HOST.fullmatch(host):
                raise UsageError(f"trusted host {host!r} must be a name such as speech.example.org, without a port")

        self.idle_unload_s, self.models_memory_bytes  # noqa: B018  raise now if they cannot be read

    @cached_property
    def idle_unload_s(self) -> float:
        return parse_duration_s("idle_unload", self.idle_unload)

    @cached_property
    def models_memory_bytes(self) -> int:
        return parse_size("models_memory", self.models_memory)

    def speaks(self, dialect: Dialect) -> bool:
        return dialect in self.dialects or ALL_DIALECTS in self.dialects


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    redis: str = option(
        "",
        "send jobs to the workers on this Redis, redis://HOST:PORT (default: run them in this server); "
        "env reads the URL from CHORAL_REDIS, which keeps passwords off the command line",
        metavar="URL",
    )
    namespace: str = option("choral", "prefix of all Redis keys; separates independent queues")
    data: str = option(
        "",
        "folder that stores jobs (default: one per port in the user's data folder; "
        "with --port 0 a temporary folder, deleted on exit)",
        metavar="FOLDER",
    )
    job_limit: int = option(1000, "jobs that may be waiting or running; more are refused", within=(1, 10**7))
    keep_s: int = option(
        KEEP_S,
        "how long a finished job and its result are kept",
        metavar="SECONDS",
        within=(60, 3650 * 86_400),
    )
    job_retry_s: float = option(
        RETRY_S,
        "delay before the first retry of a job; doubles with each retry",
        metavar="SECONDS",
        within=(0.01, DAY_S),
    )

    def __post_init__(self) -> None:
        check_fields(self)
        self.redis_url  # noqa: B018  raises now if CHORAL_REDIS is missing

    @property
    def redis_url(self) -> str:
        if self.redis != FROM_ENVIRONMENT:
            return self.redis
        if not os.environ.get(REDIS_VARIABLE):
            raise UsageError(f"--redis env needs the URL of a Redis server in {REDIS_VARIABLE}: redis://HOST:PORT")
        return os.environ[REDIS_VARIABLE]

    @contextmanager
    def open_folder(self, port: int) -> Iterator[Path]:
        """The folder that the next start on this port finds again; a temporary one with port 0."""
        if self.data:
            yield Path(self.data)
        elif port:
            yield data_root() / f"server-{port}"
        else:
            with TemporaryDirectory(prefix="choral-jobs-") as folder:
                yield Path(folder)


def data_root() -> Path:
    """The user's folder for persistent application data."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "choral"
