"""Log lines of a worker: for people, or as JSON for machines, each with the id of the job it is about."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(about)s%(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        job = getattr(record, "job", None)
        record.about = f"job {job}: " if job else ""
        return super().format(record)


class JsonLines(logging.Formatter):
    def __init__(self, worker: str) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "worker": self._worker,
            "message": record.getMessage(),
        }
        if (job := getattr(record, "job", None)) is not None:
            fields["job"] = job
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def write_logs(log_format: LogFormat, worker: str, *, is_quiet: bool = False) -> None:
    """From now on what Choral logs goes to standard error; quiet: only what is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(worker) if log_format == "json" else TextLines())
    logger = logging.getLogger("choral")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if is_quiet else logging.INFO)
