"""Settings, namespaces and addresses that are validated or redacted, and the rates of the heartbeat."""

from __future__ import annotations

import pytest

from choral.errors import UsageError
from choral.jobs import ClientSettings, WorkerSettings
from choral.jobs.heartbeat import RateMeter
from choral.jobs.redis_connection import redact_redis_url
from choral.jobs.redis_keys import RedisKeys


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (WorkerSettings, {"batch_size": -1}),
        (WorkerSettings, {"batch_wait_s": 61.0}),
        (WorkerSettings, {"claim_after_s": 1.0}),
        (WorkerSettings, {"max_attempts": 0}),
        (WorkerSettings, {"retry_s": "soon"}),
        (WorkerSettings, {"result_link": "https://example.org/"}),
        (ClientSettings, {"blob_bytes": 2**30}),
        (ClientSettings, {"keep_s": 1}),
    ],
)
def test_invalid_settings_are_refused(kind: type, values: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(values))):
        kind(**values)


def test_invalid_namespaces_are_refused() -> None:
    for name in ("", "a b", "{x}", "x" * 65):
        with pytest.raises(UsageError, match="namespace"):
            RedisKeys(name)


def test_redacted_urls_show_host_port_and_database_only() -> None:
    assert redact_redis_url("redis://user:secret@host:6380/2") == "host:6380/2"
    assert redact_redis_url("unix:///run/redis.sock?db=1") == "/run/redis.sock"


def test_rates_cover_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("choral.jobs.heartbeat.time.monotonic", lambda: now_s)
    meter = RateMeter()
    for _ in range(300):
        now_s += 1.0
        audio_per_s, busy_share = meter.update(
            audio_s=(now_s - 100) * 3 if now_s < 340 else 240 * 3, busy_s=(now_s - 100) / 2
        )
    assert busy_share == pytest.approx(0.5)
    assert audio_per_s == pytest.approx(0.0)
