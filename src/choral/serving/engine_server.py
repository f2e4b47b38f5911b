"""Serves an engine to other processes, over connected sockets and shared memory.

One thread reads all clients and writes all results; the engine's thread only appends to a queue and wakes it. A client
that disappears, or sends what no client of ours sends, is dropped: its windows are cancelled and its memory unmapped,
and the others go on.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import weakref
from collections import deque
from functools import partial

from choral.longform.transcriber import Transcriber
from choral.serving.engine_protocol import EngineDescription
from choral.serving.message_socket import ProtocolError
from choral.serving.served_client import Action, ServedClient

log = logging.getLogger("choral.serving")


class EngineServer:
    def __init__(self, transcriber: Transcriber) -> None:
        """The engine stays the caller's: `close` does not close it."""
        self.engine = transcriber.engine
        self._hello = describe(transcriber).to_json()
        self._failed_devices = self.engine.failed_devices
        self._clients: set[ServedClient] = set()
        self._actions: deque[Action] = deque()  # for the server's thread, from any other
        self._is_woken = self._is_closed = False
        self._closing = threading.Lock()  # every client added before the end is dropped by it
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Not in `close`: windows that end later still wake the thread, and the number may be that of another file then.
        weakref.finalize(self, os.close, self._wake_fd)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="choral-engine-server", daemon=True)
        self._thread.start()

    def add_client(self, connection: socket.socket) -> None:
        """Serve the client at the other end; from any thread. The server closes the socket."""
        connection.setblocking(False)
        with self._closing:
            if self._is_closed:
                connection.close()  # which tells the client
            else:
                self.call(partial(self._add, connection))

    @property
    def n_clients(self) -> int:
        return len(self._clients)

    def call(self, action: Action) -> None:
        """Run an action on the server's thread; never blocks, so the engine's thread may call it."""
        self._actions.append(action)
        if not self._is_woken:
            self._is_woken = True
            os.eventfd_write(self._wake_fd, 1)

    def call_for(self, client: ServedClient, action: Action) -> None:
        """As `call`; what goes wrong ends the client only."""
        self.call(partial(self._guard, client, action))

    def close(self) -> None:
        """Drop all clients and end the thread; a second call has no effect."""
        with self._closing:
            self._is_closed = True
        self.call(lambda: None)
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            for key, events in self._selector.select():
                if key.data is None:
                    os.eventfd_read(self._wake_fd)
                    continue
                if events & selectors.EVENT_READ:
                    self._guard(key.data, key.data.receive)
                if events & selectors.EVENT_WRITE:
                    key.data.has_unsent = True
            self._run_actions()
            self._report_failure()
            for client in [client for client in self._clients if client.has_unsent]:
                self._guard(client, partial(self._flush, client))
        self._run_actions()  # clients that were added meanwhile are dropped too
        for client in list(self._clients):
            self._drop(client)
        self._selector.close()

    def _run_actions(self) -> None:
        self._is_woken = False  # first, so that what comes while this runs wakes the thread again
        while self._actions:
            self._actions.popleft()()

    def _add(self, connection: socket.socket) -> None:
        client = ServedClient(connection, self.engine, self._hello, self.call_for)
        self._clients.add(client)
        self._selector.register(client, client.events, client)

    def _guard(self, client: ServedClient, action: Action) -> None:
        """Run an action for a client; whatever goes wrong ends that client only."""
        if client not in self._clients:
            return
        try:
            action()
        except EOFError:
            self._drop(client)
        except ProtocolError as error:
            log.warning("a client of the engine was dropped: %s", error)
            self._drop(client)
        except Exception:
            log.exception("a client of the engine was dropped")
            self._drop(client)

    def _flush(self, client: ServedClient) -> None:
        client.flush()
        if client.events != self._selector.get_key(client).events:
            self._selector.modify(client, client.events, client)

    def _drop(self, client: ServedClient) -> None:
        self._clients.discard(client)
        self._selector.unregister(client)
        client.close()

    def _report_failure(self) -> None:
        failed = self.engine.failed_devices  # `failure` follows from it
        if failed != self._failed_devices:
            self._failed_devices = failed
            for client in self._clients:
                client.send_failure()


def describe(transcriber: Transcriber) -> EngineDescription:
    engine = transcriber.engine
    return EngineDescription(
        name=engine.name,
        device=engine.device,
        compute_type=engine.compute_type,
        n_devices=engine.n_devices,
        capacity=engine.capacity,
        settings=engine.settings,
        dims=transcriber.dims,
        vocabulary=transcriber.tokenizer.vocabulary,
    )
