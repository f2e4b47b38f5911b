"""Tells a device that fails at everything from single windows that fail.

The streak counts windows that failed on their own, after the retry of their batch, and ends as soon as a window is
decoded. Encoding, prefill and alignment do not end it: a device on which only decoding fails completes no request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from choral.engine.steps import Decode, Failed, Finished, InProgress, Outcome, Prefill, Step
from choral.errors import ChoralError, WindowFailed

log = logging.getLogger("choral.engine")
MAX_FAILURES = 8  # windows in a row, until the device counts as failed


class FailureStreak:
    def __init__(self, device: str) -> None:
        self._device = device
        self._n_failed = 0
        self.reason: str | None = None  # why the device counts as failed

    def record(self, step: Step, outcomes: Sequence[Outcome]) -> None:
        if any(shows_success(step, outcome) for outcome in outcomes):
            self._end()
            return
        errors = [each.error for each in outcomes if isinstance(each, Failed) and is_device_failure(each.error)]
        self._n_failed += len(errors)
        if errors and self._n_failed >= MAX_FAILURES:
            self._fail(f"{self._n_failed} windows in a row failed on {self._device}, the last one with", errors[-1])

    def record_self_test(self, error: BaseException) -> None:
        """A failed self-test is enough. From any thread: a window that is decoded ends it whenever it comes."""
        if is_device_failure(error):
            self._fail(f"the self-test failed on {self._device}", error)

    def _fail(self, what: str, error: BaseException) -> None:
        if self.reason is None:
            self.reason = f"{what}: {error}"
            log.error("%s; a restart may be needed", self.reason, exc_info=error)

    def _end(self) -> None:
        if self.reason is not None:
            log.warning("%s works again after %d failures in a row", self._device, self._n_failed)
        self._n_failed, self.reason = 0, None


def shows_success(step: Step, outcome: Outcome) -> bool:
    match step:
        case Decode():
            return isinstance(outcome, Finished) or (isinstance(outcome, InProgress) and outcome.has_tokens)
        case Prefill():
            return isinstance(outcome, Finished)  # a window of one token
        case _:
            return False


def is_device_failure(error: BaseException) -> bool:
    """Errors of the device and bugs; other errors of ours refuse a window for what it asks."""
    return isinstance(error, WindowFailed) or not isinstance(error, ChoralError)
