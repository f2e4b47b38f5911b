"""Prometheus configuration, alerts and dashboard: checked by promtool and against real metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import promql_parser
import pytest
import yaml

from choral.jobs.metrics import WorkerMetrics
from command_lines import DEPLOY
from serve_process import ServeProcess, running
from support.redis_server import RedisServer, free_port

DASHBOARD = DEPLOY / "grafana" / "dashboards" / "choral.json"
OF_PROMETHEUS = {"up"}  # names and labels that it adds itself
OWN_LABELS = {"instance", "job", "le"}
HEALTHY_WITHIN_S = 60.0


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    drawn = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    rules = [
        rule["expr"]
        for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
        for rule in group["rules"]
    ]
    return [expression.replace("$__rate_interval", "5m") for expression in [*drawn, *rules]]


def names(expression: str) -> set[str]:
    promql_parser.parse(expression)
    return set(re.findall(r"\bchoral_\w+|\bup\b", re.sub(r'"[^"]*"', '""', expression)))


def test_promtool_accepts_config_and_rules(promtool_program: Path, tmp_path: Path) -> None:
    for file in (DEPLOY / "prometheus.yml", DEPLOY / "alerts.yml", Path(__file__).with_name("alerts_test.yml")):
        shutil.copy(file, tmp_path)
    for command in (
        ["check", "config", "--syntax-only", "prometheus.yml"],  # the key's file is in the container
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
    ):
        done = subprocess.run([promtool_program, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test() -> None:
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    tried = yaml.safe_load(Path(__file__).with_name("alerts_test.yml").read_text())["tests"]
    raised = {case["alertname"] for each in tried for case in each["alert_rule_test"] if case["exp_alerts"]}
    assert raised == {rule["alert"] for rule in rules}


def test_dashboard_panels_do_not_overlap() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
    [variable] = dashboard["templating"]["list"]
    assert (variable["name"], variable["type"]) == ("datasource", "datasource")
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"] if panel["type"] != "row"} == {"${datasource}"}
    [source] = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["type"] == variable["query"]


def labels_in(pages: str) -> dict[str, set[str]]:
    """The labels of every sample, and of metrics that have no samples yet."""
    registry = WorkerMetrics().registry
    known = {name: set(getattr(each, "_labelnames", ())) for name, each in registry._names_to_collectors.items()}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", pages, re.MULTILINE):
        known.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return known


def labels_used(expression: str) -> set[str]:
    grouped = [re.split(r",\s*", found) for found in re.findall(r"by \(([^)]*)\)", expression)]
    return {label for labels in grouped for label in labels} | set(re.findall(r"[{,]\s*(\w+)\s*=", expression))


@pytest.fixture(scope="module")
def redis(redis_program: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def server(tiny_en_pt: Path) -> Iterator[ServeProcess]:
    with running("--model", tiny_en_pt, "--processes", 1, "--threads", 1) as process:
        yield process


@pytest.fixture(scope="module")
def worker_port(tiny_en_pt: Path, redis: RedisServer) -> Iterator[int]:
    port = free_port()
    flags = ("--redis", redis.url, "--model", tiny_en_pt, "--metrics-port", port, "--processes", 1, "--threads", 1)
    worker = subprocess.Popen([sys.executable, "-m", "choral", "worker", "--quiet", *map(str, flags)])
    try:
        yield port
    finally:
        worker.terminate()
        assert worker.wait(60) == 0


def health_check(command: list[str], from_port: int, to_port: int) -> int:
    """The health check of a deployment file, with another port."""
    assert command[0] == "python"
    script = command[2].replace(str(from_port), str(to_port))
    assert str(to_port) in script
    return subprocess.run([sys.executable, "-c", script], stderr=subprocess.DEVNULL, check=False).returncode


def test_dashboard_metrics_exist_and_health_checks_work(server: ServeProcess, worker_port: int) -> None:
    of_server = json.loads(re.search(r"^\s+CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)[1])  # type: ignore[index]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    of_worker = compose["services"]["worker"]["healthcheck"]["test"][1:]
    assert health_check(of_server, 8000, int(server.url.rpartition(":")[2])) == 0
    assert health_check(of_server, 8000, free_port()) == 1
    deadline_s = time.monotonic() + HEALTHY_WITHIN_S
    while health_check(of_worker, 9100, worker_port) != 0:
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    pages = httpx.get(f"{server.url}/metrics").text + httpx.get(f"http://127.0.0.1:{worker_port}/metrics").text
    there = set(OF_PROMETHEUS)
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", pages, re.MULTILINE):
        there |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    asked = {name for expression in expressions() for name in names(expression)}
    assert asked <= there, asked - there
    known = labels_in(pages)
    for expression in expressions():
        for name in names(expression) - OF_PROMETHEUS:
            assert labels_used(expression) <= known.get(name, set()) | OWN_LABELS, expression
