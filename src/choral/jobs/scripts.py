"""The transitions of a job, each a script that Redis runs as one step: nothing is ever half done.

They are the files in `lua/`, each with the names of all keys and `common.lua` before it. Redis knows a script by its
hash, and is sent the text only when it does not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choral.jobs.redis_connection import NoScriptError, Redis
from choral.jobs.redis_keys import lua_names

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
    parts = [lua_names(), (FOLDER / "common.lua").read_text(), (FOLDER / f"{name}.lua").read_text()]
    text = "\n".join(parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


SUBMIT = load("submit")
BEGIN = load("begin")
SUCCEED = load("succeed")
FAIL = load("fail")
HAND_BACK = load("hand_back")
BEAT = load("beat")
PROMOTE = load("promote")
CANCEL = load("cancel")
RETRY = load("retry")
DELETE = load("delete")
TAKE_WEBHOOKS = load("take_webhooks")
WEBHOOK_TOLD = load("webhook_told")
REPAIR = load("repair")
SWEEP = load("sweep")
