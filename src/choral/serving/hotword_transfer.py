"""Hotword tries on their way to the engine's process: each is sent once, and windows name it by its digest.

Both sides keep the newest tries, in the order of the messages, so a client knows what its server still has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from choral.engine.hotword_trie import HotwordTrie
from choral.serving.message_socket import Body, ProtocolError

MAX_TRIES = 16  # of a client; of a mebibyte at most


class SentHotwords:
    """The digests of a client's newest tries."""

    def __init__(self) -> None:
        self._digests: deque[bytes] = deque(maxlen=MAX_TRIES)

    def add(self, trie: HotwordTrie) -> bool:
        """Whether this trie must be sent now."""
        if trie.digest in self._digests:
            return False
        self._digests.append(trie.digest)
        return True


class ReceivedHotwords:
    """The newest tries of one client, by digest."""

    def __init__(self) -> None:
        self._tries: dict[str, HotwordTrie] = {}

    def add(self, body: Body) -> None:
        """Raises `ProtocolError` for what is no trie."""
        try:
            trie = HotwordTrie.checked(bytes(body))
        except ValueError as error:
            raise ProtocolError(f"malformed hotwords: {error}") from error
        self._tries[trie.digest.hex()] = trie
        if len(self._tries) > MAX_TRIES:
            del self._tries[next(iter(self._tries))]

    @property
    def tries(self) -> Mapping[str, HotwordTrie]:
        return self._tries
