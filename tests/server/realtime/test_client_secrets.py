"""Client secrets expire, are found by their hash, and are limited in number."""

from __future__ import annotations

import pytest

from choral.server.api_errors import ApiError
from choral.server.realtime.client_secrets import MAX_SECRETS, MAX_SECRETS_PER_KEY, ClientSecrets
from choral.server.realtime.session_config import SessionConfig

CONFIG = SessionConfig.of_model("tiny")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def create(secrets: ClientSecrets, key: str | None, lifetime_s: int = 60) -> str:
    return secrets.create(key, CONFIG, is_beta=False, lifetime_s=lifetime_s)[0]


def test_secrets_expire() -> None:
    clock = Clock()
    secrets = ClientSecrets(clock)
    value = create(secrets, "a" * 64)
    found = secrets.find(value)
    assert found is not None
    assert (found.key_sha256, found.config, found.expires_at) == ("a" * 64, CONFIG, 1060)
    assert secrets.find(value + "x") is None
    assert secrets.find("") is None
    clock.now_s = 1060.0
    assert secrets.find(value) is None


def test_number_of_secrets_is_limited() -> None:
    clock = Clock()
    secrets = ClientSecrets(clock)
    for _ in range(MAX_SECRETS_PER_KEY):
        create(secrets, "a")
    with pytest.raises(ApiError, match="try again in 60 s") as refused:
        create(secrets, "a")
    assert (refused.value.http_status, refused.value.retry_after_s) == (429, 60)
    n_left = MAX_SECRETS - MAX_SECRETS_PER_KEY
    for number in range(n_left):
        create(secrets, f"b{number}")
    with pytest.raises(ApiError):
        create(secrets, "c")
    clock.now_s += 60
    create(secrets, "a")
