"""The slots in which sessions handle messages."""

from __future__ import annotations

import threading
import time

from choral.server.realtime.session_host import FairSemaphore


def test_slots_are_passed_on_in_the_order_of_arrival() -> None:
    """A thread that releases a slot and wants it again has to wait for those that came before."""
    slots, served = FairSemaphore(1), list[int]()

    def handle_message(name: int) -> None:
        with slots:
            served.append(name)

    threads = [threading.Thread(target=handle_message, args=(name,)) for name in range(6)]
    with slots:
        for n_waiting, thread in enumerate(threads, 1):
            thread.start()
            while len(slots._waiting) < n_waiting:
                time.sleep(0.001)
    handle_message(6)
    for thread in threads:
        thread.join()
    assert served == list(range(7))


def test_no_more_slots_are_taken_than_there_are() -> None:
    slots, n_active, peak = FairSemaphore(2), 0, 0
    lock = threading.Lock()

    def handle_messages() -> None:
        nonlocal n_active, peak
        for _ in range(50):
            with slots:
                with lock:
                    n_active += 1
                    peak = max(peak, n_active)
                time.sleep(0.001)
                with lock:
                    n_active -= 1

    threads = [threading.Thread(target=handle_messages) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert peak == 2
    with slots, slots:  # both are free again
        pass
