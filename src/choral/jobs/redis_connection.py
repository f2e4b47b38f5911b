"""The way to Redis: an address, a client, and errors in plain words. The password of an address stands in none of them.

`redis_errors` turns what the Redis library raises into `RedisUnavailable`; who would rather wait than fail catches
`redis.RedisError` before it does.
"""

from __future__ import annotations

import os
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

# The library types its answers anew with every version; here each is read into a type of our own at once.
Redis: TypeAlias = Any
ENVIRONMENT = "CHORAL_REDIS"
DEFAULT_URL = "redis://localhost:6379"
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 20.0  # longer than any blocking read
SCHEMES = ("redis", "rediss", "unix")


def connect(url: str) -> Redis:
    """A client for this address; the first command opens the connection."""
    if urlsplit(url).scheme not in SCHEMES:
        raise UsageError(
            "the address of Redis must begin with redis://, rediss:// or unix://, as in redis://localhost:6379/0"
        )
    try:
        return redis.asyncio.Redis.from_url(
            url,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=ANSWER_TIMEOUT_S,
            protocol=2,  # the answers of the other are shaped differently from version to version
            retry=Retry(NoBackoff(), 1),  # a connection that was closed while idle; scripts may be repeated
        )
    except ValueError as error:
        raise UsageError(f"the address of Redis cannot be understood: {error}") from None


def resolve_redis_url(given: str | None) -> str:
    return given or os.environ.get(ENVIRONMENT) or DEFAULT_URL


def redact_redis_url(url: str) -> str:
    """The address for people: host, port and database."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{host}{parts.path}".rstrip("/") or "localhost"


@contextmanager
def redis_errors(shown: str) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise RedisUnavailable(f"Redis at {shown} {reason(error)}") from error


def reason(error: redis.RedisError) -> str:
    """What Redis does or does not, as the end of a sentence."""
    text = str(error)
    if is_replica(error):
        return "is a replica that may not be written: give the address of the primary, or wait for the fail-over"
    match error:
        case redis.AuthenticationError() | redis.exceptions.NoPermissionError():
            return f"does not let us in ({text}): check the user and password in the address, or in {ENVIRONMENT}"
        case redis.exceptions.OutOfMemoryError():
            return "is out of memory: wait until jobs are done, or raise its maxmemory"
        case redis.BusyLoadingError():
            return "is still loading its data: try again in a moment"
        case redis.TimeoutError():
            return "does not answer in time: check the address and the network"
        case redis.ConnectionError():
            return f"cannot be reached ({_plain(error)}): check the address, and that it runs"
    if any(word in text for word in ("NOAUTH", "WRONGPASS", "unauthenticated")):
        return f"wants a password: put it into the address, redis://:PASSWORD@HOST, best in {ENVIRONMENT}"
    if "unknown command" in text.lower():
        return f"is too old or not complete ({text}): Choral needs Redis 6.2 or newer, or Valkey"
    return f"refuses: {text}"


def is_replica(error: redis.RedisError) -> bool:
    """Or has just become one."""
    return isinstance(error, redis.ReadOnlyError) or str(error).startswith("UNBLOCKED")


def _plain(error: redis.ConnectionError) -> str:
    """What the system says, without the library's words around it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)  # below 0: of finding the host
        cause = cause.__cause__ or cause.__context__
    return str(error)
