"""`choral worker`: takes jobs from Redis and transcribes them until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from choral.cli.arguments import Parser, add_flags, given_options
from choral.cli.shared_flags import (
    SERVICE_SETTINGS,
    WEBHOOK_SECRET,
    add_log_flags,
    add_machine_flags,
    add_redis_flags,
    load_model,
)
from choral.cli.signals import STOP_SIGNALS
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.api import Model
    from choral.jobs.settings import WorkerSettings
    from choral.serving.settings import ServingSettings

USAGE = "choral worker [options]"
DESCRIPTION = """\
Take jobs from Redis and transcribe them until stopped. Run any number of workers on any number of
machines: when a worker dies, another one takes over its jobs.

On SIGTERM or Ctrl-C the worker takes no more jobs, finishes those that are running, and returns to the
queue what is not done within --drain-s. A second signal ends it at once, and other workers take over
its jobs.
"""
EPILOG = f"""\
Webhooks are signed with the secret in {WEBHOOK_SECRET}, or in the file given by --webhook-secret-file.
`choral submit` sends jobs, `choral jobs` shows them.

exit codes: 0 stopped or burst done; 2 usage, 4 model, 6 engine, 7 missing package, 9 Redis
"""
FLAGS = {
    "batches": ("batch_size", "batch_wait_s", "prep_ahead"),
    "failures": ("claim_after_s", "max_attempts", "max_crashes", "retry_s", "drain_s"),
    "webhooks": ("webhook_s", "webhook_retry_s", "result_link"),
}
PREP_FLAGS = (
    "processes", "fetches", "fetches_per_host", "memory_bytes", "max_bytes", "max_audio_s", "fetch_timeout_s",
    "stall_timeout_s", "decode_timeout_s", "roots", "allowed_hosts",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    from choral.jobs.settings import WorkerSettings
    from choral.serving.settings import ServingSettings

    queue = parser.add_argument_group("queue")
    add_redis_flags(queue)
    queue.add_argument("--burst", action="store_true", help="exit when the queue, retries and webhooks are done")
    add_machine_flags(parser.add_argument_group("model and machine"))
    for heading, names in FLAGS.items():
        group = parser.add_argument_group(heading)
        add_flags(group, WorkerSettings, names)
    group.add_argument(
        "--webhook-secret-file", type=Path, metavar="FILE", help="file with the secret that signs webhooks"
    )
    add_flags(parser.add_argument_group("preparing audio"), ServingSettings, PREP_FLAGS)
    monitoring = parser.add_argument_group("monitoring")
    monitoring.add_argument("--metrics-port", type=int, metavar="N", help="serve Prometheus metrics on this port")
    monitoring.add_argument(
        "--metrics-host",
        default="127.0.0.1",
        metavar="HOST",
        help="address of the metrics; 0.0.0.0: other machines can read them, without a login (default: 127.0.0.1)",
    )
    add_log_flags(monitoring)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from choral.common.logs import configure_logging
    from choral.common.malloc import limit_malloc_arenas
    from choral.jobs.settings import WorkerSettings
    from choral.jobs.webhook_delivery import signing_key
    from choral.jobs.worker import new_worker_name
    from choral.remote.ssrf_guard import SsrfGuard
    from choral.serving.settings import ServingSettings

    settings = WorkerSettings(**given_options(arguments, WorkerSettings))
    prep = ServingSettings(**given_options(arguments, ServingSettings))
    SsrfGuard(prep.allowed_hosts)  # raises before a model is loaded if one of them is wrong
    secret = read_secret(arguments.webhook_secret_file)
    signing_key(secret)  # raises before a model is loaded if it is malformed
    limit_malloc_arenas()
    asyncio.run(check_redis(arguments))  # a wrong URL fails before a model is loaded
    with closing(load_model(arguments, **SERVICE_SETTINGS)) as model:
        name = new_worker_name()
        configure_logging(arguments.log_format, worker=name, is_quiet=arguments.quiet)  # after the progress bar is gone
        asyncio.run(run_worker(arguments, name, model, prep, settings, secret))
    return 0


def read_secret(file: Path | None) -> str:
    if file is None:
        return os.environ.get(WEBHOOK_SECRET, "")
    try:
        return file.read_text().strip()
    except OSError as error:
        raise UsageError(f"cannot read the webhook secret from {file}: {error.strerror}") from error


async def check_redis(arguments: argparse.Namespace) -> None:
    from choral.jobs.client import AsyncClient

    async with AsyncClient(arguments.redis) as client:
        await client.counts()


async def run_worker(
    arguments: argparse.Namespace, name: str, model: Model, prep: ServingSettings, settings: WorkerSettings, secret: str
) -> None:
    from choral.jobs.job_queue import JobQueue
    from choral.jobs.metrics import WorkerMetrics, serve_metrics
    from choral.jobs.redis_connection import connect, redact_redis_url, resolve_redis_url
    from choral.jobs.redis_keys import RedisKeys
    from choral.jobs.worker import Worker, log
    from choral.serving.runtime import Runtime

    url = resolve_redis_url(arguments.redis)
    metrics = WorkerMetrics()
    n_requests = settings.batch_size or model.requests_at_once
    async with connect(url) as redis:
        with (
            Runtime.for_service(model.transcriber, prep, n_requests) as runtime,
            serve_metrics(metrics, arguments.metrics_host, arguments.metrics_port),
        ):
            queue = JobQueue(redis, RedisKeys(settings.namespace))
            address = redact_redis_url(url)
            worker = Worker(
                queue,
                model,
                runtime,
                settings,
                redis_address=address,
                name=name,
                webhook_secret=secret,
                metrics=metrics,
            )
            stop_on_signals(worker.stop)
            log.info("%s takes jobs from %s with %s on %s", name, address, model.name, model.device)
            log.info("%s", runtime.plan)
            await worker.run(is_burst=arguments.burst)
            log.info("%s stopped", name)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` on the first SIGTERM or SIGINT in the running event loop; the next one kills the process."""
    loop = asyncio.get_running_loop()

    def handle() -> None:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, handle)
