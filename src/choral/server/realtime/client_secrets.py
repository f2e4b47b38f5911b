"""Short-lived keys for live sessions: a server asks for one with its API key, and gives it to a browser.

A client secret opens WebSockets until it expires, with the session that was configured for it, at the expense of the
API key that asked. The server has only hashes, in memory: a restart ends all secrets, and so does removing the key.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from choral.server.api_errors import ApiError
from choral.server.api_keys import hash_secret
from choral.server.realtime.session_config import SessionConfig

PREFIX = "ek_"
MIN_LIFETIME_S, MAX_LIFETIME_S, DEFAULT_LIFETIME_S = 10, 7_200, 600  # OpenAI's
MAX_SECRETS, MAX_SECRETS_PER_KEY = 2_000, 500  # that have not expired


@dataclass(frozen=True)
class ClientSecret:
    key_sha256: str | None  # of the API key; None: the server requires none
    config: SessionConfig
    is_beta: bool
    expires_at: int


class ClientSecrets:
    """Used in the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._by_hash: dict[str, ClientSecret] = {}

    def create(
        self, key_sha256: str | None, config: SessionConfig, *, is_beta: bool, lifetime_s: int
    ) -> tuple[str, ClientSecret]:
        """A new secret, and what it stands for."""
        self._drop_expired()
        n_own = sum(secret.key_sha256 == key_sha256 for secret in self._by_hash.values())
        if n_own >= MAX_SECRETS_PER_KEY or len(self._by_hash) >= MAX_SECRETS:
            retry_s = max(1, min(secret.expires_at for secret in self._by_hash.values()) - int(self._clock()))
            raise ApiError(
                f"{n_own} client secrets of this key have not expired: try again in {retry_s} s",
                status=429,
                code="rate_limit_exceeded",
                retry_after_s=retry_s,
            )
        value = PREFIX + secrets.token_urlsafe(32)
        created = ClientSecret(key_sha256, config, is_beta, int(self._clock()) + lifetime_s)
        self._by_hash[hash_secret(value)] = created
        return value, created

    def find(self, value: str) -> ClientSecret | None:
        found = self._by_hash.get(hash_secret(value)) if value.startswith(PREFIX) else None
        return found if found is not None and self._clock() < found.expires_at else None

    def _drop_expired(self) -> None:
        now_s = self._clock()
        self._by_hash = {digest: secret for digest, secret in self._by_hash.items() if now_s < secret.expires_at}
