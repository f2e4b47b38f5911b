"""Traces of a real server, as a collector receives them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from otel_collector import OtelCollector
from serve_process import ServeProcess

ROUTE = "/v1/audio/transcriptions"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def facts(span: Any) -> dict[str, object]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def call(server: ServeProcess, clip: Path, trace_id: str, **fields: str) -> httpx.Response:
    headers = {"traceparent": f"00-{trace_id}-{PARENT}-01", "x-request-id": "mine-1"}
    with clip.open("rb") as file:
        form = {"model": "whisper-1", **fields}
        return httpx.post(f"{server.url}{ROUTE}", files={"file": file}, data=form, headers=headers, timeout=60)


def test_spans_join_the_callers_trace(tiny_en_pt: Path, jfk: Path) -> None:
    with OtelCollector() as collector:
        server = ServeProcess(
            "--model", tiny_en_pt, "--threads", 1, "--processes", 1, "--otel", "--log-format", "json",
            env={
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "speech",
                "OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            },
        )  # fmt: skip
        try:
            server.wait_ready()
            check_good(collector, server, jfk)
            check_bad(collector, server)
            assert {span.name for span in collector.spans if not span.parent_span_id} == set()  # health is not traced
            collector.close()
            assert call(server, jfk, "c" * 32).status_code == 200  # an unreachable collector does not affect requests
            time.sleep(1.0)
            log = server.log
            started_s = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - started_s < 10
            assert all(json.loads(line)["level"] for line in log.splitlines())  # the SDK's complaints are JSON too
        finally:
            server.process.kill()


def check_good(collector: OtelCollector, server: ServeProcess, clip: Path) -> None:
    for trace_id, fields in ((TRACE, {}), ("b" * 32, {"stream": "true"})):
        assert call(server, clip, trace_id, **fields).status_code == 200
        root, *parts = collector.trace(trace_id, 4)
        assert (root.name, root.parent_span_id.hex()) == (f"POST {ROUTE}", PARENT)
        told = facts(root)
        assert abs(float(str(told.pop("choral.audio_s"))) - 11.0) < 0.1
        assert told == {
            "http.request.method": "POST",
            "http.route": ROUTE,
            "http.response.status_code": 200,
            "choral.request_id": "mine-1",
            "choral.model": "tiny.en.pt",
        }
        assert [part.name for part in parts] == ["read the upload", "prep", "transcribe"]
        assert {part.parent_span_id for part in parts} == {root.span_id}
        for part in parts:
            start, end = part.start_time_unix_nano, part.end_time_unix_nano
            assert root.start_time_unix_nano <= start <= end <= root.end_time_unix_nano
    assert collector.services == {"speech"}


def check_bad(collector: OtelCollector, server: ServeProcess) -> None:
    assert call(server, Path(__file__), "d" * 32).status_code == 400
    root, reading, prep = collector.trace("d" * 32, 3)
    assert facts(root)["http.response.status_code"] == 400
    assert "error.type" not in facts(reading)
    assert facts(prep) == {"error.type": "NotAudio"}


def test_missing_otel_package_is_reported_before_loading() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk.trace'] = None; "
        "from choral.cli.main import main; sys.exit(main(['serve', '--otel', '--port', '0', '--model', 'no-such']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert "pip install 'choral[otel]'" in done.stderr
