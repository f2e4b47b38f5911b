"""Logging of workers and servers: text or JSON lines on standard error, each with the job or request it is about."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]
CONTEXT_FIELDS = ("job", "request")  # given as `extra={"job": …}`
LIBRARIES = ("uvicorn", "opentelemetry", "asyncio")  # their warnings are logged in the same format


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(context)s%(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.context = "".join(f"{name} {value}: " for name, value in _context(record).items())
        return super().format(record)


class JsonFormatter(logging.Formatter):
    def __init__(self, **constant_fields: str) -> None:
        super().__init__()
        self._constant_fields = constant_fields

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self._constant_fields,
            "message": record.getMessage(),
            **_context(record),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _context(record: logging.LogRecord) -> dict[str, str]:
    return {name: value for name in CONTEXT_FIELDS if (value := getattr(record, name, None))}


def configure_logging(log_format: LogFormat, *, is_quiet: bool = False, **constant_fields: str) -> None:
    """Log to standard error: Choral from INFO, or WARNING if quiet; libraries from WARNING.

    JSON lines also have the `constant_fields`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(**constant_fields) if log_format == "json" else TextFormatter())
    levels = dict.fromkeys(LIBRARIES, logging.WARNING) | {"choral": logging.WARNING if is_quiet else logging.INFO}
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)


def configured_format() -> LogFormat | None:
    """The format in which this process logs; None if `configure_logging` was not called."""
    formats: dict[type, LogFormat] = {JsonFormatter: "json", TextFormatter: "text"}
    formatters = [type(handler.formatter) for handler in logging.getLogger("choral").handlers]
    return next((formats[each] for each in formatters if each in formats), None)
