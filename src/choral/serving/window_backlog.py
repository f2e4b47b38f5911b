"""Windows of a client that wait for a slot of its shared memory. Interactive callers first; callers take turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.engine.hotword_trie import HotwordTrie
from choral.engine.steps import Pending
from choral.engine.window import Caller
from choral.options import Priority
from choral.serving.engine_protocol import PRIORITIES


@dataclass(frozen=True, eq=False)
class ClientWindow:
    """A window between `submit` and its result."""

    samples: npt.NDArray[np.float32]
    message: bytes  # all but the slot
    hotwords: HotwordTrie | None  # that the message names
    caller: Caller
    future: Pending[Any]


class WindowBacklog:
    def __init__(self) -> None:
        self._queues: dict[Priority, dict[Caller, deque[ClientWindow]]] = {priority: {} for priority in PRIORITIES}

    def __iter__(self) -> Iterator[ClientWindow]:
        return (window for queues in self._queues.values() for queue in queues.values() for window in queue)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def put(self, window: ClientWindow) -> None:
        self._queues[window.caller.priority].setdefault(window.caller, deque()).append(window)

    def pop(self) -> ClientWindow | None:
        """The first window of the next caller, which then goes behind the others."""
        self.remove_cancelled()
        for queues in self._queues.values():
            if queues:
                caller = next(iter(queues))
                queue = queues.pop(caller)
                window = queue.popleft()
                if queue:
                    queues[caller] = queue
                return window
        return None

    def remove_cancelled(self) -> None:
        for window in [window for window in self if window.future.cancelled()]:
            window.future.set_running_or_notify_cancel()  # wakes those who wait for it
            queues = self._queues[window.caller.priority]
            queues[window.caller].remove(window)
            if not queues[window.caller]:
                del queues[window.caller]

    def clear(self) -> None:
        for queues in self._queues.values():
            queues.clear()
