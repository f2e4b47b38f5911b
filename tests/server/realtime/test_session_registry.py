"""The slots in which sessions handle messages."""

from __future__ import annotations

import threading
import time

from choral.server.realtime.session_registry import FairSemaphore


def test_slots_are_passed_on_in_the_order_of_arrival() -> None:
    """A thread that releases a slot and wants it again has to wait for those that came before."""
    slots, n_active, peak, handled = FairSemaphore(2), 0, 0, dict.fromkeys(range(6), 0)
    lock, stop = threading.Lock(), threading.Event()

    def handle_messages(name: int) -> None:
        nonlocal n_active, peak
        while not stop.is_set():
            with slots:
                with lock:
                    n_active += 1
                    peak = max(peak, n_active)
                time.sleep(0.001)
                with lock:
                    n_active -= 1
                handled[name] += 1

    threads = [threading.Thread(target=handle_messages, args=(name,)) for name in handled]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert peak == 2
    assert max(handled.values()) - min(handled.values()) <= 3, handled
    with slots, slots:  # both are free again
        pass
