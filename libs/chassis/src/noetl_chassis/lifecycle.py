"""Starts and stops a service process: telemetry, signals, health port and exit code."""

import asyncio
import gc
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

import uvloop
from msgspec import Struct

from noetl_chassis import failpoints, health, identity, settings, telemetry
from noetl_chassis.health import HealthChecks
from noetl_chassis.observability import started_counters
from noetl_chassis.settings import (
    ServiceSettings,
    SettingsError,
    get_process_locality,
)
from noetl_chassis.structured_log import structlog
from noetl_contracts.errors import NoetlError

S = TypeVar("S", bound=Struct)

# Net allocations before a young collection, and collections before an older one.
COLLECTOR_THRESHOLDS = (100_000, 20, 20)

EXIT_FAILED = 1
EXIT_USAGE = 2
PRINT_SETTINGS = "--print-settings"
VERSION = "--version"
HELP = frozenset({"--help", "-h"})
USAGE = """\
usage: python -m noetl_{service} [--print-settings | --version | --help]

Runs the {service} until SIGTERM. Its settings are variables {prefix}<NAME>:
--print-settings prints them all, with their values and defaults, secrets masked.
/livez, /readyz and /metrics are served on {prefix}HEALTH_HOST and {prefix}HEALTH_PORT.
"""

log = structlog.get_logger(__name__)


class ServiceProcess(Struct, frozen=True, kw_only=True):
    """What a running service is given: its name, when to stop, where to say how it is."""

    instance: str
    stop: asyncio.Event
    health: HealthChecks
    health_port: int


@asynccontextmanager
async def stop_on_signal() -> AsyncIterator[asyncio.Event]:
    """Yield an event that SIGTERM or SIGINT sets; a second SIGINT has its usual effect."""
    stop = asyncio.Event()
    running = asyncio.get_running_loop()

    def request_stop(number: int) -> None:
        stop.set()
        if number == signal.SIGINT:
            running.remove_signal_handler(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, request_stop, number)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            running.remove_signal_handler(number)


@asynccontextmanager
async def open_process(config: ServiceSettings, *, service: str) -> AsyncIterator[ServiceProcess]:
    """Start telemetry, signals and the health port of a service."""
    instance = config.instance or identity.build_instance_name(service)
    probes = HealthChecks()
    with telemetry.start_telemetry(
        service=service,
        instance=instance,
        log_format=config.log_format,
        log_level=config.log_level,
        otlp_endpoint=config.otlp_endpoint,
        place=get_process_locality(config),
    ) as running_telemetry:
        started_counters.begin_counters(service)
        failpoints.arm_plan(settings.read_failpoint_plan(config))
        async with (
            stop_on_signal() as stop,
            health.serve_health(
                probes,
                host=config.health_host,
                port=config.health_port,
                metrics_text=running_telemetry.render_metrics,
            ) as port,
        ):
            log.info("service started", health_port=port)
            yield ServiceProcess(instance=instance, stop=stop, health=probes, health_port=port)
            log.info("service stopped")


def run_service(
    serve: Callable[[S], Awaitable[None]],
    *,
    load: Callable[[], S],
    prefix: str,
    argv: Sequence[str] | None = None,
) -> None:
    """Load settings and run a service; ends the process with 0, 1 or 2; each error is a line."""
    arguments = sys.argv[1:] if argv is None else argv
    service = prefix.removeprefix("NOETL_").strip("_").lower()
    if VERSION in arguments:
        sys.stdout.write(f"noetl-{service} {telemetry.find_version(service)}\n")
        return
    if HELP.intersection(arguments):
        sys.stdout.write(USAGE.format(service=service, prefix=prefix))
        return
    try:
        config = load()
    except SettingsError as failure:
        _exit_with_error(str(failure), EXIT_USAGE)
    if PRINT_SETTINGS in arguments:
        sys.stdout.write("\n".join(settings.render_settings(config, prefix=prefix)) + "\n")
        return
    if arguments:
        _exit_with_error(
            f"unknown argument {arguments[0]!r}: use {PRINT_SETTINGS}, {VERSION}, --help or none",
            EXIT_USAGE,
        )
    run_until_done(lambda: serve(config))


def run_until_done(main: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine on uvloop; what NoETL can name ends in one line and exit code 1."""
    tune_garbage_collector()
    try:
        uvloop.run(_await_main(main))
    except NoetlError as failure:
        _exit_with_error(str(failure), EXIT_FAILED)
    except BaseExceptionGroup as group:
        anticipated, unknown = group.split((NoetlError, asyncio.CancelledError))
        if unknown is not None:
            raise unknown from None
        _exit_with_error(_describe_first_error(anticipated), EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def tune_garbage_collector() -> None:
    """Let the cycle collector run less: almost all of a service's garbage is freed by counting.

    With its defaults the collector took a seventh of a busy worker's time.
    """
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


async def _await_main(main: Callable[[], Awaitable[None]]) -> None:
    """Make a coroutine of it: uvloop runs no other awaitable."""
    await main()


def _describe_first_error(group: BaseExceptionGroup[Any] | None) -> str:
    failure: BaseException | None = group
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return str(failure)


def _exit_with_error(reason: str, code: int) -> NoReturn:
    for line in settings.mask_addresses(reason).splitlines() or [""]:
        sys.stderr.write(f"error: {line}\n")
    sys.exit(code)
