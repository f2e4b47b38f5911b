"""Who is to blame for the death of a request process, and who runs again.

A crash happens in a decoder, so the requests that were decoding are its suspects; without any, all are. A single
suspect is guilty. Several run again, each alone in a process, and the one whose process then dies again is guilty. A
process that was killed from outside (by an operator, the OOM killer) says less: a suspect gets `MAX_KILLS` processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from choral.errors import NotAudio
from choral.serving.child_process import death_reason, was_killed
from choral.serving.pooled_request import PooledRequest

MAX_KILLS = 2  # a killed process is replaced once; a file whose process is killed twice is assumed to be the cause


@dataclass(frozen=True)
class Verdict:
    guilty: Sequence[PooledRequest]
    suspects: Sequence[PooledRequest]
    innocent: Sequence[PooledRequest]


def find_guilty(requests: Sequence[PooledRequest], returncode: int) -> Verdict:
    """Of the requests that were running in a process; those that were fetching are innocent."""
    decoding = [request for request in requests if request.phase == "decoding"]
    suspects = decoding or [request for request in requests if request.phase == "transcribing"]
    innocent = [request for request in requests if request not in suspects]
    if was_killed(returncode):
        for request in suspects:
            request.n_kills += 1
        guilty = [request for request in suspects if request.n_kills >= MAX_KILLS and request.must_run_alone]
    else:
        guilty = suspects if len(suspects) == 1 else []
    guilty = guilty + [request for request in suspects if not request.shared.can_rerun and request not in guilty]
    return Verdict(guilty, [request for request in suspects if request not in guilty], innocent)


def crashed(request: PooledRequest, reason: str) -> NotAudio:
    return NotAudio(f"{request.name} crashed the decoder ({reason}): it is damaged; convert it to wav or flac")


def crash_error(request: PooledRequest, returncode: int) -> NotAudio:
    return crashed(request, death_reason(returncode))
