"""Assigns requests to processes and follows them: the state of a request pool, owned by its thread.

A request goes to the process with the fewest requests; a new process is started while all of them are busy, and while
there are fewer than `n_kept`. After `MAX_REQUESTS_PER_PROCESS` a process is replaced, because libraries leak. Requests
that may have crashed a process run alone in an extra one (`crash_decision`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from choral.errors import EngineError, UsageError
from choral.serving.child_process import death_reason, was_killed
from choral.serving.connected_process import ConnectedProcess
from choral.serving.crash_decision import crash_error, crashed, decide_after_crash
from choral.serving.pool_settings import PoolSettings
from choral.serving.pooled_request import PooledRequest
from choral.serving.request_lane import RequestLane
from choral.serving.request_protocol import BadMessage, ProcessMessage, decode_error
from choral.serving.request_run import decode_timeout, out_of_memory

log = logging.getLogger("choral.serving")
MAX_REQUESTS_PER_PROCESS = 2_000
MAX_START_FAILURES = 3  # in a row, of processes that end before they are ready
MAX_START_KILLS = 30  # likewise, if the last was killed from outside, which says little about the next
HANG_GRACE_S = 3.0  # for a decoder to notice its timeout itself
SILENT_S, MAX_SILENT_S, MAX_START_S = 5.0, 30.0, 120.0  # a process that does not answer: ask, kill; while it starts


# Runs a function that may block on a thread, and then the other with its result where the state is owned.
RunInBackground = Callable[[Callable[[], Any], Callable[[Any], None]], None]


class RequestDispatcher:
    def __init__(
        self,
        settings: PoolSettings,
        start_process: Callable[[], ConnectedProcess],
        run_in_background: RunInBackground,
    ) -> None:
        self.processes: list[ConnectedProcess] = []
        self._settings, self._start_process = settings, start_process
        self._run_in_background = run_in_background
        self._n_ending = 0  # processes that have closed their connection, and whose exit status is not known yet
        self._lanes = {waits: RequestLane(settings.fetches, settings.n_fetches_per_host) for waits in (True, False)}
        self._suspects: deque[PooledRequest] = deque()
        self._n_start_failures = 0

    def add(self, request: PooledRequest) -> None:
        self._lanes[request.client_waits].add(request)

    def cancel(self, request: PooledRequest) -> None:
        if request.is_done:
            return
        request.end_cancelled()
        if request.process is None:
            request.shared.close()
        else:  # it is forgotten when the process says that it has ended
            request.process.cancel(request)

    def dispatch(self) -> None:
        """Send waiting requests to the processes that have room for them."""
        for client_waits, lane in self._lanes.items():
            while (request := lane.next_local()) and (process := self._choose(client_waits)):
                lane.local.popleft()
                self._send(process, request, "decoding")
            while (request := lane.next_remote()) and (process := self._choose(None)):
                lane.start_fetch(request)
                self._send(process, request, "fetching")
        self._dispatch_suspect()
        while len(self._usable) + self._n_ending < self._settings.n_kept and not self._n_start_failures:
            if not self._try_start(is_needed=False):
                break

    def receive(self, process: ConnectedProcess) -> None:
        """Read what a process has sent; it is gone afterwards if it has ended."""
        try:
            for message in process.receive():
                self._apply(process, message)
        except EOFError:
            self._handle_exit(process)
        except (BadMessage, UsageError, ValueError, TypeError, KeyError, IndexError) as error:
            log.error("a request process sent a message that cannot be read (%s): it is killed", error)
            process.kill()
            self._handle_exit(process)

    def check_deadlines(self) -> None:
        """Kill processes that hang; the requests that caused it fail, the others run again."""
        now_s, limits = time.monotonic(), self._settings.limits
        for process in [each for each in self.processes if each.requests]:
            silent_s = now_s - process.last_message_s
            if not process.is_ready:
                if silent_s > MAX_START_S:
                    process.kill()
                continue
            late = [(each, late_s) for each in process.requests.values() if (late_s := each.late_s(now_s, limits)) > 0]
            if stuck := [each for each, late_s in late if late_s > HANG_GRACE_S]:
                self._fail_stuck(process, stuck, silent_s)
            if stuck or silent_s > MAX_SILENT_S:
                process.kill()
            elif late or silent_s > SILENT_S:
                process.ask_alive()

    def retire_all(self) -> None:
        """Give the processes no more requests; each ends when it has none."""
        for process in list(self.processes):
            process.is_retiring = True
            if not process.requests:
                self._remove(process)

    def close(self) -> None:
        for process in self.processes:
            process.disconnect()
            process.kill()
            for request in process.requests.values():
                request.shared.close()
        for process in self.processes:
            process.end()
        self.processes.clear()

    @property
    def has_running(self) -> bool:
        return any(process.requests for process in self.processes)

    # Processes

    @property
    def _usable(self) -> list[ConnectedProcess]:
        return [each for each in self.processes if not each.is_retiring and not each.is_for_suspects]

    def _choose(self, client_waits: bool | None) -> ConnectedProcess | None:
        """The least loaded process with room in this lane; None: of any load, for a download."""
        usable = self._usable
        n_missing = self._settings.n_processes - len(usable) - self._n_ending
        if n_missing > 0 and all(each.requests for each in usable):
            usable += self._try_start(is_needed=not usable)
        if client_waits is not None:
            usable = [each for each in usable if each.n_running(client_waits) < self._settings.n_requests]
        return min(usable, key=lambda each: (not each.is_ready, len(each.requests)), default=None)

    def _try_start(self, is_needed: bool) -> list[ConnectedProcess]:
        """A new process, if there are memory and descriptors for one; if it `is_needed`, what waits for it fails."""
        try:
            self.processes.append(self._start_process())
        except (EngineError, OSError) as error:
            if is_needed:
                self._fail_waiting(EngineError(f"could not start a request process: {error}"))
            return []
        return self.processes[-1:]

    def _fail_waiting(self, error: EngineError) -> None:
        for lane in self._lanes.values():
            for request in (*lane.local, *lane.remote, *self._suspects):
                request.fail(error)
                request.shared.close()

    def _send(self, process: ConnectedProcess, request: PooledRequest, phase: Any) -> None:
        request.enter(phase)
        request.process = process
        process.start(request)
        process.is_retiring = process.is_retiring or process.n_started >= MAX_REQUESTS_PER_PROCESS

    def _dispatch_suspect(self) -> None:
        """One at a time, in a process that has nothing else, and ends when there are no more of them."""
        found = [each for each in self.processes if each.is_for_suspects]
        while self._suspects and self._suspects[0].is_done:
            self._forget(self._suspects.popleft())
        if any(process.requests for process in found):
            return
        if not self._suspects:
            for process in found:
                self._remove(process)
        for process in found or self._try_start(is_needed=True) if self._suspects else []:
            process.is_for_suspects = True
            request = self._suspects.popleft()
            self._send(process, request, "decoding" if request.host is None else "fetching")

    def _remove(self, process: ConnectedProcess) -> None:
        self.processes.remove(process)
        process.disconnect()
        self._run_in_background(process.end, lambda _: None)  # freeing its memory takes milliseconds

    # Messages

    def _apply(self, process: ConnectedProcess, message: ProcessMessage) -> None:
        if message[0] == "ready":
            self._n_start_failures = 0
            process.is_ready = True
            for request in process.requests.values():
                request.enter(request.phase)  # time limits do not include the start of the process
        elif message[0] != "alive" and message[1] in process.requests:
            request = process.requests[message[1]]
            if message[0] == "failed":
                if message[2] == "memory":  # what its libraries did without memory is unknown
                    process.is_retiring = True
                self._leave(process, request)
                self._fail(request, message[2], message[3:])
                return
            request.apply(message)
            if message[0] == "fetched":
                self._lanes[request.client_waits].end_fetch(request)
            elif message[0] == "finished":
                self._leave(process, request)
                self._forget(request)

    def _fail(self, request: PooledRequest, how: str, details: list[Any]) -> None:
        if how == "memory":
            if not request.must_run_alone and request.shared.can_rerun and not request.is_done:
                self._run_alone(request)
                return
            request.fail(out_of_memory(request.name))
        elif how == "error":
            request.fail(decode_error(details[0]))
        elif how == "bug":
            name, text, trace = details
            log.error("internal error in a request: please report it\n%s", trace)
            if request.phase == "decoding":
                request.fail(crashed(request, name))
            else:
                request.fail(EngineError(f"internal error in Choral ({name}: {text}): please report it"))
        else:
            request.end_cancelled()
        self._forget(request)

    def _leave(self, process: ConnectedProcess, request: PooledRequest) -> None:
        del process.requests[request.id]
        if process.is_retiring and not process.requests:
            self._remove(process)

    def _forget(self, request: PooledRequest) -> None:
        self._lanes[request.client_waits].end_fetch(request)
        request.process = None
        request.shared.close()

    # Deaths

    def _handle_exit(self, process: ConnectedProcess) -> None:
        self.processes.remove(process)
        process.disconnect()
        self._n_ending += 1
        self._run_in_background(process.wait, lambda returncode: self._handle_death(process, returncode))

    def _handle_death(self, process: ConnectedProcess, returncode: int) -> None:
        self._n_ending -= 1
        requests = list(process.requests.values())
        if not process.is_ready and self._has_start_failed(returncode):
            text = f"could not start a request process ({death_reason(returncode)}): run `choral doctor`"
            for request in requests:
                request.fail(EngineError(text))
        alive = [request for request in requests if not request.is_done]
        for request in set(requests) - set(alive):
            self._forget(request)
        if process.is_ready:
            self._handle_crash(alive, returncode)
        else:
            self._run_again(alive)

    def _has_start_failed(self, returncode: int) -> bool:
        self._n_start_failures += 1
        return self._n_start_failures >= (MAX_START_KILLS if was_killed(returncode) else MAX_START_FAILURES)

    def _handle_crash(self, requests: list[PooledRequest], returncode: int) -> None:
        decision = decide_after_crash(requests, returncode)
        for request in decision.failed:
            request.fail(crash_error(request, returncode))
            self._forget(request)
        for request in decision.run_alone:
            self._run_alone(request)
        self._run_again(decision.run_again)

    def _run_alone(self, request: PooledRequest) -> None:
        self._lanes[request.client_waits].end_fetch(request)
        request.run_again()
        request.must_run_alone = True
        self._suspects.append(request)

    def _run_again(self, requests: Any) -> None:
        for request in reversed(requests):
            lane = self._lanes[request.client_waits]
            lane.end_fetch(request)
            request.run_again()
            if not request.shared.can_rerun:
                request.fail(EngineError(f"the process that read {request.name} has ended: give it again"))
                self._forget(request)
            elif request.host is None:
                lane.local.appendleft(request)
            else:
                lane.add(request)

    def _fail_stuck(self, process: ConnectedProcess, stuck: list[PooledRequest], silent_s: float) -> None:
        """If the process answers, these hang by themselves; if it does not, any of those that decode may block it."""
        n_decoding = sum(each.phase == "decoding" and not each.is_done for each in process.requests.values())
        if silent_s < HANG_GRACE_S or n_decoding == 1:
            for request in stuck:
                timeout_s = self._settings.limits.max_decode_s(request.client_waits)
                request.fail(decode_timeout(request.name, timeout_s))  # no effect on one that was cancelled
