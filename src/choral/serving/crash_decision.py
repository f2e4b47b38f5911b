"""After a request process has died: which of its requests fail, and which run again.

A crash happens in a decoder, so the requests that were decoding are its suspects; without any, all are. A single
suspect fails. Several run again, each alone in a process, and the one whose process then dies again fails. A process
that was killed from outside (by an operator, the OOM killer) says less: a suspect gets `MAX_KILLS` processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from choral.errors import NotAudio
from choral.serving.child_process import death_reason, was_killed
from choral.serving.pooled_request import PooledRequest

MAX_KILLS = 2  # a killed process is replaced once; a file whose process is killed twice is assumed to be the cause


@dataclass(frozen=True)
class CrashDecision:
    failed: Sequence[PooledRequest]
    run_alone: Sequence[PooledRequest]
    run_again: Sequence[PooledRequest]


def decide_after_crash(requests: Sequence[PooledRequest], returncode: int) -> CrashDecision:
    """For the requests that were running in the process; those that were fetching run again."""
    decoding = [request for request in requests if request.phase == "decoding"]
    suspects = decoding or [request for request in requests if request.phase == "transcribing"]
    others = [request for request in requests if request not in suspects]
    if was_killed(returncode):
        for request in suspects:
            request.n_kills += 1
        failed = [request for request in suspects if request.n_kills >= MAX_KILLS and request.must_run_alone]
    else:
        failed = suspects if len(suspects) == 1 else []
    failed = failed + [request for request in suspects if not request.shared.can_rerun and request not in failed]
    return CrashDecision(failed, [request for request in suspects if request not in failed], others)


def crashed(request: PooledRequest, reason: str) -> NotAudio:
    return NotAudio(f"{request.name} crashed the decoder ({reason}): it is damaged; convert it to wav or flac")


def crash_error(request: PooledRequest, returncode: int) -> NotAudio:
    return crashed(request, death_reason(returncode))
