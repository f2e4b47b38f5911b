"""Admission control and its Retry-After estimate."""

from __future__ import annotations

import pytest

from choral.errors import QueueFull
from choral.server.admission import UPLOAD_GRACE_S, AdmissionControl, CompletionRate, UploadAdmission
from choral.server.api_errors import to_api_error


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_retry_estimate_follows_completion_rate() -> None:
    clock = Clock()
    rate = CompletionRate(clock)
    assert rate.retry_after_s(100) == 1  # nothing is known
    rate.restart()
    clock.now_s += 10
    assert rate.retry_after_s(2) == 10  # nothing was done in ten seconds
    rate.record(5)
    assert rate.retry_after_s(20) == 20  # two seconds each, and half of twenty
    for done in range(6, 46):
        clock.now_s += 0.25
        rate.record(done)
    assert rate.retry_after_s(45) == 10  # 45 in twenty seconds
    clock.now_s += 3600
    rate.restart()  # an hour of silence says nothing of the speed
    clock.now_s += 1
    rate.record(55)
    assert rate.retry_after_s(40) == 2
    assert rate.retry_after_s(10**6) == 120
    assert rate.retry_after_s(1) == 1


def test_full_admission_control_sets_retry_after() -> None:
    admission = AdmissionControl(1, "requests")
    with (
        admission.admit(),
        pytest.raises(QueueFull, match="1 requests are already in progress: try again in 1 s") as full,
    ):
        admission.require_capacity()
    assert to_api_error(full.value).retry_after_s == 1
    assert to_api_error(QueueFull("from the engine")).retry_after_s == 5


def test_slow_upload_gives_its_place_to_a_new_one() -> None:
    clock = Clock()
    uploads = UploadAdmission(3, min_rate=100, clock=clock)
    with uploads.admit_upload() as fast, uploads.admit_upload() as slow, uploads.admit_upload() as slower:
        with pytest.raises(QueueFull):  # too early to tell
            uploads.require_capacity()
        clock.now_s += UPLOAD_GRACE_S
        fast.n_bytes, slow.n_bytes, slower.n_bytes = 500, 400, 399
        uploads.require_capacity()
        assert not slower.is_evicted  # a place was not needed yet
        with uploads.admit_upload() as new:
            assert [slot.is_evicted for slot in (fast, slow, slower, new)] == [False, False, True, False]
            assert uploads.n_active == 3
            slow.is_reading = False  # all of it has arrived
            with pytest.raises(QueueFull):
                uploads.require_capacity()
    assert uploads.n_active == 0
