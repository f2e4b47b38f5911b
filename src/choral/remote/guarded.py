"""HTTP connections that go where a guard lets them, over the standard library's handlers.

Proxies are not used: a proxy looks names up itself, so nothing checked here would hold there.
"""

from __future__ import annotations

import socket
import ssl
import urllib.request as web
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any

from choral.remote.guard import Guard
from choral.remote.lifeline import Lifeline


class _GuardedHttp(HTTPConnection):
    def __init__(self, host: str, *, guard: Guard, lifeline: Lifeline, **settings: Any) -> None:
        super().__init__(host, **settings)
        self._guard, self._lifeline = guard, lifeline

    def connect(self) -> None:
        self.sock = self._guard.connect(self.host, self.port, self.timeout)
        self._lifeline.hold(self.sock)


class _GuardedHttps(HTTPSConnection):
    def __init__(
        self, host: str, *, guard: Guard, lifeline: Lifeline, context: ssl.SSLContext, **settings: Any
    ) -> None:
        super().__init__(host, context=context, **settings)
        self._guard, self._lifeline, self._tls = guard, lifeline, context

    def connect(self) -> None:
        plain = self._guard.connect(self.host, self.port, self.timeout)
        self.sock: socket.socket = self._tls.wrap_socket(
            plain, server_hostname=self.host, do_handshake_on_connect=False
        )
        self._lifeline.hold(self.sock)
        self.sock.do_handshake()


class GuardedHandler(web.HTTPHandler):
    def __init__(self, guard: Guard, lifeline: Lifeline) -> None:
        super().__init__()
        self._guard, self._lifeline = guard, lifeline

    def http_open(self, req: web.Request) -> HTTPResponse:
        return self.do_open(partial(_GuardedHttp, guard=self._guard, lifeline=self._lifeline), req)


class GuardedTlsHandler(web.AbstractHTTPHandler):
    https_request = web.AbstractHTTPHandler.do_request_

    def __init__(self, guard: Guard, lifeline: Lifeline, tls_context: Callable[[], ssl.SSLContext]) -> None:
        super().__init__()
        self._guard, self._lifeline, self._tls_context = guard, lifeline, tls_context

    def https_open(self, req: web.Request) -> HTTPResponse:
        context = self._tls_context()
        return self.do_open(partial(_GuardedHttps, guard=self._guard, lifeline=self._lifeline, context=context), req)
