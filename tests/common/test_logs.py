"""Log lines with the job they are about."""

from __future__ import annotations

import json
import logging

from choral.common.logs import JsonFormatter, TextFormatter


def test_log_lines_name_the_job() -> None:
    record = logging.LogRecord("choral.jobs", logging.WARNING, "", 0, "failed: %s", ("why",), None)
    record.job = "abc"
    assert "WARNING job abc: failed: why" in TextFormatter().format(record)
    fields = json.loads(JsonFormatter(worker="me").format(record))
    del fields["time"]
    assert fields == {"job": "abc", "level": "warning", "message": "failed: why", "worker": "me"}
