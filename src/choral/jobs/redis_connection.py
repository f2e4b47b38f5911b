"""Connecting to Redis, and its errors as `RedisUnavailable` with a readable message. Messages never show passwords.

`RedisError` and the other names of the Redis library are imported from here, so that a missing package is reported in
one way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from choral.errors import MissingDependency, RedisUnavailable, UsageError

try:
    import redis
    import redis.asyncio
    from redis import RedisError as RedisError
    from redis import ResponseError as ResponseError
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import NoScriptError as NoScriptError
except ImportError as missing:
    raise MissingDependency("jobs need the package redis: pip install 'choral[jobs]'") from missing

# The library changes the types of its responses with every version; callers convert each response at once.
Redis: TypeAlias = Any
ENVIRONMENT = "CHORAL_REDIS"
DEFAULT_URL = "redis://localhost:6379"
CONNECT_TIMEOUT_S = 5.0
RESPONSE_TIMEOUT_S = 20.0  # longer than any blocking read
# Errors of the server and the queue begin with a code, as in MISCONF or NOGROUP, or have a class of their own.
_DAMAGE = re.compile(r"WRONGTYPE|(?![A-Z]{3,} ).*user_script", re.DOTALL)
SCHEMES = ("redis", "rediss", "unix")


def connect(url: str) -> Redis:
    """A client for this URL; the first command opens the connection."""
    if urlsplit(url).scheme not in SCHEMES:
        raise UsageError(
            "the URL of Redis must begin with redis://, rediss:// or unix://, as in redis://localhost:6379/0"
        )
    try:
        return redis.asyncio.Redis.from_url(
            url,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=RESPONSE_TIMEOUT_S,
            protocol=2,  # the shape of RESP3 responses differs between versions of the library
            encoding_errors="replace",  # lone surrogates in names and messages
            retry=Retry(NoBackoff(), 1),  # for connections closed while idle; all scripts may be repeated
        )
    except ValueError as error:
        raise UsageError(f"the URL of Redis is not valid: {error}") from None


def resolve_redis_url(url: str | None) -> str:
    """The given URL, else that of the environment, else this machine."""
    return url or os.environ.get(ENVIRONMENT) or DEFAULT_URL


def redact_redis_url(url: str) -> str:
    """Host, port and database, without credentials."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{host}{parts.path}".rstrip("/") or "localhost"


@contextmanager
def redis_errors(address: str) -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise RedisUnavailable(f"Redis at {address} {describe_error(error)}") from error


def describe_error(error: RedisError) -> str:
    """Completes the sentence "Redis at HOST …"."""
    text = str(error)
    if is_replica(error):
        return "is a read-only replica: give the URL of the primary, or wait for the fail-over"
    match error:
        case redis.AuthenticationError() | redis.exceptions.NoPermissionError():
            return f"refuses the login ({text}): check the user and password in the URL, or in {ENVIRONMENT}"
        case redis.exceptions.OutOfMemoryError():
            return "is out of memory: wait until jobs have ended, or raise its maxmemory"
        case redis.BusyLoadingError():
            return "is still loading its data: try again soon"
        case redis.TimeoutError():
            return "does not respond in time: check the URL and the network"
        case redis.ConnectionError():
            return f"cannot be reached ({_system_error(error)}): check the URL, and that Redis is running"
    if any(word in text for word in ("NOAUTH", "WRONGPASS", "unauthenticated")):
        return f"requires a password: put it into the URL, redis://:PASSWORD@HOST, preferably in {ENVIRONMENT}"
    if "unknown command" in text.lower():
        return f"lacks a command ({text}): Choral needs Redis 6.2 or newer, or Valkey"
    return f"reports an error: {text}"


def is_damaged_record(error: RedisError) -> bool:
    """Whether a script failed on the contents of a key, so that repeating it cannot help."""
    return type(error) is ResponseError and _DAMAGE.match(str(error)) is not None


@contextmanager
def damage_errors() -> Iterator[None]:
    """For a script that concerns one job: raise `UsageError` if it fails on the job's record."""
    try:
        yield
    except ResponseError as error:
        if not is_damaged_record(error):
            raise
        raise UsageError(f"the record of this job is damaged ({error}): submit it again") from error


def is_replica(error: RedisError) -> bool:
    """Whether the server is a replica, or has just become one."""
    return isinstance(error, redis.ReadOnlyError) or str(error).startswith("UNBLOCKED")


def _system_error(error: redis.ConnectionError) -> str:
    """The message of the operating system, without the library's wrapping."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)  # negative: from getaddrinfo
        cause = cause.__cause__ or cause.__context__
    return str(error)
