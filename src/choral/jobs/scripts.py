"""The state transitions of a job as Lua scripts, which Redis runs atomically.

Each script in `lua/` is prefixed with the key names, the constants of `job_states` and `common.lua`. Redis caches
scripts by hash, so the text is sent only when Redis does not know it.

All but those that add jobs or audio run even when Redis has reached its maxmemory: they end jobs, which frees memory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choral.jobs.job_states import lua_constants
from choral.jobs.redis_connection import NoScriptError, Redis
from choral.jobs.redis_keys import lua_key_names

FOLDER = Path(__file__).parent / "lua"
# Redis refuses a script at maxmemory unless its first write is of a kind that cannot need memory, such as DEL. The flag
# `allow-oom` does the same, but older versions than Redis 7 cannot read it.
ALLOW_OOM = "redis.call('DEL', KEYS[1] .. 'none')"


@dataclass(frozen=True)
class Script:
    text: str
    sha: str

    async def run(self, redis: Redis, prefix: str, *arguments: str | bytes | float) -> Any:
        try:
            return await redis.evalsha(self.sha, 1, prefix, *arguments)
        except NoScriptError:
            return await redis.eval(self.text, 1, prefix, *arguments)


def load(name: str, *, allow_oom: bool = True) -> Script:
    files = [(FOLDER / f"{part}.lua").read_text() for part in ("common", name)]
    parts = [lua_key_names(), lua_constants(), *files]
    text = "\n".join([ALLOW_OOM, *parts] if allow_oom else parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


SUBMIT = load("submit", allow_oom=False)
WRITE_BLOB = load("write_blob", allow_oom=False)
CREATE_GROUPS = load("create_groups")
START = load("start")
SUCCEED = load("succeed")
FAIL = load("fail")
REJECT = load("reject")
REQUEUE = load("requeue")
DEFER = load("defer")
HEARTBEAT = load("heartbeat")
PROMOTE_DELAYED = load("promote_delayed")
CANCEL = load("cancel")
RETRY = load("retry", allow_oom=False)
DELETE = load("delete")
LEASE_WEBHOOKS = load("lease_webhooks")
RECORD_WEBHOOK = load("record_webhook")
POSTPONE_WEBHOOKS = load("postpone_webhooks")
REBUILD_QUEUE = load("rebuild_queue")
REMOVE_IDLE_CONSUMERS = load("remove_idle_consumers")
