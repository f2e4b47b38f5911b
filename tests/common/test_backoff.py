"""Exponential back-off."""

from __future__ import annotations

from choral.common.backoff import backoff_s


def test_pauses_double_up_to_the_maximum_with_jitter() -> None:
    samples = [[backoff_s(n, 7.0) for _ in range(50)] for n in range(1, 10)]
    for n, pauses in enumerate(samples):
        assert 0.8 * 7 * 2**n <= min(pauses) < max(pauses) <= 1.2 * 7 * 2**n
    assert 3000 < sum(sum(pauses) / 50 for pauses in samples) < 4000  # nine pauses: about an hour
    assert backoff_s(1000, 1.0, 60.0) <= 72
