"""Log lines of workers and servers: for people, or as JSON for machines, each with the job or request it is about."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]
KINDS = ("job", "request")
FOREIGN = tuple((name, logging.WARNING) for name in ("uvicorn", "opentelemetry", "asyncio"))


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(about)s%(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        about = [f"{kind} {own}: " for kind in KINDS if (own := getattr(record, kind, None))]
        record.about = "".join(about)
        return super().format(record)


class JsonFormatter(logging.Formatter):
    def __init__(self, **always: str) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self._always,
            "message": record.getMessage(),
        }
        fields |= {kind: own for kind in KINDS if (own := getattr(record, kind, None)) is not None}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def configure_logging(log_format: LogFormat, *, is_quiet: bool = False, **always: str) -> None:
    """From now on what Choral logs goes to standard error; quiet: only what is wrong.

    Warnings of the libraries below it come in the same form. Each line of JSON has the fields of `always` too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(**always) if log_format == "json" else TextFormatter())
    for name, level in (("choral", logging.WARNING if is_quiet else logging.INFO), *FOREIGN):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
