"""`choral serve`: runs the HTTP server until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, AsyncExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser, add_flags, given_options
from choral.cli.console import write_stdout
from choral.cli.progress import download_bar
from choral.cli.shared_flags import (
    SERVICE_SETTINGS,
    WEBHOOK_SECRET,
    add_log_flags,
    add_machine_flags,
    engine_settings,
    load_model,
)
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.api import Model
    from choral.server.api_keys import ApiKeyStore
    from choral.server.settings import JobSettings, ServerSettings
    from choral.server.tracing import Tracing
    from choral.serving.settings import ServingSettings

KEY = "CHORAL_API_KEY"
USAGE = "choral serve [options]"
DESCRIPTION = """\
Serve a model over HTTP with OpenAI's audio API: OpenAI's clients work with this server as their base
URL. All clients share one engine, and each gets the text that it would get alone.

On SIGTERM or Ctrl-C the server takes no more requests and finishes those that are running. A second
signal ends it at once.
"""
EPILOG = f"""\
Without keys, anyone who can reach the address may use the server. `choral keys add NAME --file FILE`
creates a key with limits. Set a single key without limits in {KEY} rather than with
--api-key: other users can see command lines. Webhooks are signed with the secret in {WEBHOOK_SECRET}.

Without keys, the server answers only to its own names and those of --trusted-hosts, and refuses pages
of other sites. docs/operate.md has a table of all limits, including those without a flag.

exit codes: 0 stopped; 2 usage, 4 model, 5 disk, 6 engine, 7 missing package, 9 Redis
"""
ADDRESS_FLAGS = ("host", "port", "trusted_hosts", "cors_origins", "unknown_fields", "dialects", "wyoming_port")
NAME_FLAGS = ("alias", "any_model")
LIMIT_FLAGS = (
    "max_upload_bytes", "max_audio_s", "uploads", "upload_stall_s", "upload_timeout_s", "upload_min_rate",
    "connections", "response_stall_s", "at_once", "queue_limit", "drain_s",
)  # fmt: skip
REALTIME_FLAGS = (
    "realtime_sessions", "realtime_processes", "realtime_message_bytes", "realtime_buffer_s", "realtime_idle_s",
    "realtime_send_s",
)  # fmt: skip
JOB_FLAGS = ("data", "job_limit", "keep_s", "job_retry_s", "redis", "namespace")
PREP_FLAGS = (
    "processes", "fetches", "fetches_per_host", "memory_bytes", "fetch_timeout_s", "stall_timeout_s",
    "decode_timeout_s", "interactive_timeout_s", "allowed_hosts",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    from choral.server.settings import JobSettings, ServerSettings
    from choral.serving.settings import ServingSettings

    add_flags(parser.add_argument_group("address"), ServerSettings, ADDRESS_FLAGS)
    keys = parser.add_argument_group("keys")
    keys.add_argument("--api-key", metavar="KEY", help=f"the key that clients must send (default: {KEY})")
    keys.add_argument("--api-keys-file", type=Path, metavar="FILE", help="file with keys from `choral keys`")
    machine = parser.add_argument_group("model and machine")
    add_machine_flags(machine)
    add_flags(machine, ServerSettings, NAME_FLAGS)
    add_flags(parser.add_argument_group("limits"), ServerSettings, LIMIT_FLAGS)
    add_flags(parser.add_argument_group("live audio"), ServerSettings, REALTIME_FLAGS)
    add_flags(parser.add_argument_group("jobs"), JobSettings, JOB_FLAGS)
    add_flags(parser.add_argument_group("preparing audio"), ServingSettings, PREP_FLAGS)
    monitoring = parser.add_argument_group("monitoring")
    add_log_flags(monitoring)
    monitoring.add_argument(
        "--otel",
        action="store_true",
        help="send traces to an OpenTelemetry collector, at OTEL_EXPORTER_OTLP_ENDPOINT or http://localhost:4318",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import choral.server.app  # noqa: F401  raises before anything else if a package of the server is missing
    from choral.common.aio import server_loop_factory
    from choral.common.logs import configure_logging
    from choral.common.malloc import limit_malloc_arenas
    from choral.jobs.webhook_delivery import signing_key
    from choral.remote.ssrf_guard import SsrfGuard
    from choral.server.api_keys import ApiKeyStore
    from choral.server.listener import bind
    from choral.server.settings import JobSettings, ServerSettings
    from choral.serving.settings import ServingSettings

    settings = ServerSettings(**given_options(arguments, ServerSettings))
    prep = ServingSettings(
        **{
            **given_options(arguments, ServingSettings),
            "max_bytes": settings.max_upload_bytes,
            "max_audio_s": settings.max_audio_s,
        }
    )
    SsrfGuard(prep.allowed_hosts)  # raises before a model is loaded if one of them is wrong
    signing_key(os.environ.get(WEBHOOK_SECRET, ""))  # likewise if the webhook secret is malformed
    jobs = JobSettings(**given_options(arguments, JobSettings))
    keys = ApiKeyStore(arguments.api_keys_file, arguments.api_key or os.environ.get(KEY) or None)
    if settings.speaks("wyoming") and keys.is_required:
        raise UsageError("the dialect wyoming has no keys: leave it out, or serve it by a server without keys")
    limit_malloc_arenas()
    with (
        open_tracing(is_enabled=arguments.otel) as tracing,
        bind(settings.host, settings.port) as bound,
        bind_wyoming(settings) as wyoming,
        closing(load_served_model(arguments)) as model,
    ):
        configure_logging(arguments.log_format, is_quiet=arguments.quiet)  # after the progress bar is gone
        with asyncio.Runner(loop_factory=server_loop_factory()) as runner:
            runner.run(serve(model, prep, settings, jobs, keys, bound, tracing, wyoming))
    return 0


def load_served_model(arguments: argparse.Namespace) -> Model:
    """With its engine in this process or, where that would slow down both, in a process of its own."""
    from choral.api import Model
    from choral.engine.engine_plan import plan_engine
    from choral.longform.load_transcriber import default_name
    from choral.serving.device_processes import load_on_devices
    from choral.serving.runtime_plan import needs_engine_process
    from choral.serving.supervised_engine import SupervisedEngine

    settings = replace(engine_settings(arguments), **SERVICE_SETTINGS)
    if not needs_engine_process(is_on_gpu=plan_engine(settings).is_torch_on_gpu):
        return load_model(arguments, **SERVICE_SETTINGS)
    name = arguments.model or default_name(settings)
    with download_bar(f"loading {name}", is_quiet=arguments.quiet) as on_download:
        engine = SupervisedEngine(
            name, settings, on_download=on_download, log_format=arguments.log_format, load=load_on_devices
        )
    return Model(name, engine, engine.transcriber)


@contextmanager
def open_tracing(*, is_enabled: bool) -> Iterator[Tracing | None]:
    """Open the exporter before a model is loaded, so that a missing package fails at once."""
    if not is_enabled:
        yield None
        return
    from choral.server.tracing import Tracing

    with closing(Tracing()) as tracing:
        yield tracing


async def serve(
    model: Model,
    prep: ServingSettings,
    settings: ServerSettings,
    jobs: JobSettings,
    keys: ApiKeyStore,
    bound: socket.socket,
    tracing: Tracing | None = None,
    wyoming: socket.socket | None = None,
) -> None:
    from choral.common.malloc import frozen_gc
    from choral.server.app import create_app
    from choral.server.dialects.wyoming import serve_wyoming
    from choral.server.jobs.job_billing import JobBilling
    from choral.server.jobs.job_store import open_job_store
    from choral.server.listener import BACKLOG, Listener
    from choral.server.quota import open_quotas
    from choral.server.realtime.session_pool import open_session_pool
    from choral.server.service import Service
    from choral.serving.runtime import Runtime

    n_requests = settings.at_once or model.requests_at_once
    with Runtime.for_service(model.transcriber, prep, n_requests, loop=asyncio.get_running_loop()) as runtime:
        service = Service.of(model, runtime, settings)
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(jobs.open_folder(settings.port))
            quotas = await stack.enter_async_context(open_quotas(keys, folder, service.loops))
            billing = JobBilling(keys, quotas)
            secret = os.environ.get(WEBHOOK_SECRET, "")
            store = await stack.enter_async_context(open_job_store(service, jobs, folder, billing, secret))
            await stack.enter_async_context(open_session_pool(service))
            listener = Listener(create_app(service, keys, store, quotas, tracing), service)
            stack.enter_context(frozen_gc())
            bound.listen(BACKLOG)  # clients can connect from here on
            if wyoming is not None:
                await stack.enter_async_context(serve_wyoming(service, wyoming))
            write_stdout(greeting(service, keys, bound, wyoming))
            await listener.serve([bound])


def greeting(service: Any, keys: ApiKeyStore, bound: socket.socket, wyoming: socket.socket | None) -> str:
    from choral.server.listener import local_url
    from choral.serving.runtime_plan import session_place

    model, url, pool = service.model, local_url(bound), service.realtime.pool
    key = ' -H "Authorization: Bearer $CHORAL_API_KEY"' if keys.is_required else ""
    return (
        f"choral serves {service.model_id} at {url}\n"
        f"  {model.engine} on {model.device} in {model.compute_type}, encoder budget {model.encoder_budget:,} frames, "
        f"{model.n_slots} slots\n"
        f"  {service.runtime.plan}; {session_place(len(pool.pids) if pool is not None else 0)}\n"
        f"  {dialect_line(service.settings, wyoming)}\n"
        f"  curl {url}/v1/audio/transcriptions{key} -F model={shlex.quote(service.model_id)} -F file=@talk.mp3\n"
    )


def dialect_line(settings: ServerSettings, wyoming: socket.socket | None) -> str:
    from choral.server.settings import DIALECTS

    ports = {} if wyoming is None else {"wyoming": f" (port {wyoming.getsockname()[1]})"}
    spoken = [dialect + ports.get(dialect, "") for dialect in DIALECTS if settings.speaks(dialect)]
    return f"dialects: {', '.join(['openai', *spoken])}"


def bind_wyoming(settings: ServerSettings) -> AbstractContextManager[socket.socket | None]:
    from choral.server.listener import bind

    return bind(settings.host, settings.wyoming_port) if settings.speaks("wyoming") else nullcontext()
