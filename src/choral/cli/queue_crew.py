"""Inputs at work as jobs of the queue: workers anywhere transcribe them, and what becomes of each is reported here."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from choral.cli.crew import Failed, Finished, Heard, Moved, Report
from choral.cli.inputs import Input
from choral.errors import ChoralError, RedisUnavailable

if TYPE_CHECKING:
    from choral.jobs.record import JobRecord
    from choral.jobs.sync_client import Client

PAUSE_S = 1.0
MOST_TRIES = 60


class QueueCrew:
    """The jobs were submitted before, and go on when nobody watches any more."""

    def __init__(self, client: Client, job_ids: Mapping[Input, str]) -> None:
        self.size = len(job_ids)
        self._client, self._job_ids = client, job_ids
        self._items = {job_id: item for item, job_id in job_ids.items()}
        self._news: SimpleQueue[JobRecord | BaseException] = SimpleQueue()
        self._reports: list[Report] = []  # that one piece of news gave, the last first
        self._ended: set[str] = set()
        threading.Thread(target=self._watch, name="choral-watch", daemon=True).start()

    def begin(self, item: Input) -> None:
        """It has begun already."""

    def next_report(self) -> Report:
        while not self._reports:
            self._take(self._news.get())
        return self._reports.pop()

    def reports_so_far(self) -> Iterator[Report]:
        while True:
            while self._reports:
                yield self._reports.pop()
            try:
                self._take(self._news.get_nowait())
            except Empty:
                return

    def stop(self) -> None:
        """Nothing to end here: whoever closes the client ends the watching."""

    def _watch(self) -> None:
        """Redis may go away for a while: the jobs do not, so there is no reason to leave."""
        for n_tries in itertools.count(1):
            try:
                self._client.wait_all([*self._items], on_record=self._news.put)
                return
            except BaseException as error:  # raised where the reports are taken
                if not isinstance(error, RedisUnavailable) or n_tries == MOST_TRIES:
                    self._news.put(error)
                    return
            time.sleep(PAUSE_S)

    def _take(self, news: JobRecord | BaseException) -> None:
        if isinstance(news, BaseException):
            raise news
        item = self._items[news.id]
        if not news.has_ended:
            if news.duration_s is not None:
                self._reports = [Moved(item, news.done_s, news.duration_s)]
        elif news.id not in self._ended:
            self._ended.add(news.id)
            self._reports = self._outcome(item, news.id)[::-1]

    def _outcome(self, item: Input, job_id: str) -> list[Report]:
        try:
            transcript = self._client.result(job_id)
        except ChoralError as error:
            return [Failed(item, error)]
        return [*(Heard(item, segment) for segment in transcript.segments), Finished(item, transcript)]
