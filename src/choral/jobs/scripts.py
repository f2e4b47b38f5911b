"""The state transitions of a job as Lua scripts, which Redis runs atomically.

Each script in `lua/` is prefixed with the key names and `common.lua`. Redis caches scripts by hash, so the text is sent
only when Redis does not know it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choral.jobs.redis_connection import NoScriptError, Redis
from choral.jobs.redis_keys import lua_key_names

FOLDER = Path(__file__).parent / "lua"


@dataclass(frozen=True)
class Script:
    text: str
    sha: str

    async def run(self, redis: Redis, prefix: str, *arguments: str | bytes | float) -> Any:
        try:
            return await redis.evalsha(self.sha, 1, prefix, *arguments)
        except NoScriptError:
            return await redis.eval(self.text, 1, prefix, *arguments)


def load(name: str) -> Script:
    text = "\n".join([lua_key_names(), (FOLDER / "common.lua").read_text(), (FOLDER / f"{name}.lua").read_text()])
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


SUBMIT = load("submit")
START = load("start")
SUCCEED = load("succeed")
FAIL = load("fail")
REQUEUE = load("requeue")
HEARTBEAT = load("heartbeat")
PROMOTE_DELAYED = load("promote_delayed")
CANCEL = load("cancel")
RETRY = load("retry")
DELETE = load("delete")
LEASE_WEBHOOKS = load("lease_webhooks")
RECORD_WEBHOOK = load("record_webhook")
REBUILD_QUEUE = load("rebuild_queue")
REMOVE_IDLE_CONSUMERS = load("remove_idle_consumers")
