import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import aiohttp
import pytest

from noetl_chassis import health, lifecycle, telemetry
from noetl_chassis.health import HealthChecks, HealthPortTaken
from noetl_chassis.lifecycle import EXIT_FAILED, EXIT_USAGE
from noetl_chassis.observability import instruments, names
from noetl_chassis.settings import ServiceSettings, SettingsError
from noetl_contracts.errors import Permanent, Retryable

CONFIG = ServiceSettings(nats_url="nats://u:pw@h:1")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Give the root logger back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level


async def get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def test_readiness_lists_every_problem_and_liveness_does_not_care() -> None:
    async def ping() -> None:
        raise Retryable("no database")

    probes = HealthChecks()
    probes.add_check("good", lambda: None)
    probes.add_check("bad", lambda: "broken")
    probes.add_check("postgres", health.build_ping_check(ping))
    async with health.serve_health(
        probes, host="127.0.0.1", port=0, metrics_text=lambda: b""
    ) as port:
        assert await get(port, "/livez") == (200, "ok\n")
        status, body = await get(port, "/readyz")
        less = await get(port, "/readyz?exclude=bad&exclude=postgres")
    assert less[0] == 200
    assert status == 503
    assert '"problems":{"bad":"broken","postgres":"no database"}' in body


async def test_a_process_that_is_still_starting_is_not_ready() -> None:
    assert await HealthChecks().list_problems() == {"start": "still starting"}


async def test_a_taken_health_port_is_one_clear_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(HealthPortTaken, match=f"127.0.0.1:{port}.*HEALTH_PORT"):
            async with health.serve_health(
                HealthChecks(), host="127.0.0.1", port=port, metrics_text=lambda: b""
            ):
                pass


async def test_a_process_is_not_ready_before_its_last_part_has_started() -> None:
    checks = HealthChecks()
    checks.expect_start("api", "nobody listens yet")
    checks.add_check("nats", lambda: None)
    assert await checks.list_problems() == {"api": "nobody listens yet"}
    checks.note_start("api")
    assert await checks.list_problems() == {}


SHOWING = {
    names.MetricKind.COUNTER: instruments.add_to_counter,
    names.MetricKind.GAUGE: instruments.set_gauge,
    names.MetricKind.HISTOGRAM: instruments.record_measurement,
}


@pytest.fixture
def forgotten_gauges() -> Iterator[None]:
    """Leave no value behind: all tests of a process share its gauges."""
    yield
    for metric in names.METRICS:
        if metric.kind is names.MetricKind.GAUGE:
            instruments.clear_gauge(metric)


@pytest.mark.usefixtures("forgotten_gauges")
def test_metrics_have_the_names_that_are_declared() -> None:
    with telemetry.start_telemetry(service="outbox", instance="outbox-1") as shown:
        for metric in names.METRICS:
            SHOWING[metric.kind](metric, 1, labels=dict.fromkeys(metric.labels, "x"))
        instruments.add_to_counter(names.EVENTS_APPENDED, 2, labels={names.EVENT_TYPE: "frame"})
        instruments.set_gauge(names.OUTBOX_OLDEST_AGE, 1.5)
        instruments.record_measurement(names.LOOP_DURATION, 0.02, labels={names.LOOP: "once"})
        for _ in range(100):
            instruments.record_measurement(names.LOOP_DURATION, 0.02, labels={names.LOOP: "many"})
        text = shown.render_metrics().decode()
    assert 'noetl_events_appended_total{event_type="frame"} 2.0' in text
    assert "noetl_outbox_oldest_age_seconds 1.5" in text
    assert 'noetl_loop_turn_duration_seconds_bucket{le="0.025",loop="once"} 1.0' in text
    assert 'noetl_loop_turn_duration_seconds_count{loop="many"} 100.0' in text
    assert 'noetl_build_info{service="outbox"' in text
    exposed = {line.partition("{")[0].split(" ")[0] for line in text.splitlines()}
    for metric in names.METRICS:
        suffix = "_count" if metric.kind is names.MetricKind.HISTOGRAM else ""
        assert f"{metric.name}{suffix}" in exposed


def test_counters_have_no_total_in_their_opentelemetry_names() -> None:
    assert names.EVENTS_APPENDED.instrument_name == "noetl_events_appended"
    assert not any(metric.instrument_name.endswith("_total") for metric in names.METRICS)


def test_every_metric_is_declared_once_with_its_unit_in_its_name() -> None:
    spelled = [metric.name for metric in names.METRICS]
    assert len(set(spelled)) == len(spelled)
    for metric in names.METRICS:
        assert metric.name.startswith("noetl_")
        assert (metric.kind is names.MetricKind.COUNTER) == metric.name.endswith("_total")
        if metric.unit == "s":
            assert metric.name.removesuffix("_total").endswith("_seconds")


def test_secrets_never_reach_a_log() -> None:
    event = telemetry.mask_secrets(
        None,
        "info",
        {
            "password": "hunter2",
            "nested": {"api_key": "hunter2", "list": ["nats://u:hunter2@h"]},
            "url": "postgres://u:hunter2@h/d",
            "rows": 3,
        },
    )
    assert "hunter2" not in repr(event)
    assert event["rows"] == 3


async def test_a_signal_asks_a_process_to_stop() -> None:
    async with lifecycle.stop_on_signal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(60):
            await stop.wait()


def load_config() -> ServiceSettings:
    return CONFIG


def leaves(capsys: pytest.CaptureFixture[str], failure: BaseException) -> tuple[int, str]:
    async def serve(_config: ServiceSettings) -> None:
        raise failure

    with pytest.raises(SystemExit) as exit_:
        lifecycle.run_service(serve, load=load_config, prefix="X_", argv=[])
    assert isinstance(exit_.value.code, int)
    return exit_.value.code, capsys.readouterr().err


def test_a_known_error_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = leaves(capsys, Permanent("cannot use nats://u:hunter2@h:1"))
    assert (code, said) == (EXIT_FAILED, "error: cannot use nats://***@h:1\n")


def test_a_known_error_of_a_task_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [Permanent("no schema")])])
    assert leaves(capsys, group) == (EXIT_FAILED, "error: no schema\n")


def test_a_bug_is_not_hidden() -> None:
    async def serve(_config: ServiceSettings) -> None:
        raise ExceptionGroup("tasks", [ZeroDivisionError("bug")])

    with pytest.raises(ExceptionGroup, match="tasks"):
        lifecycle.run_service(serve, load=load_config, prefix="X_", argv=[])


def test_bad_settings_end_in_one_line_and_the_usage_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load() -> ServiceSettings:
        raise SettingsError("X_NATS_URL must be set.")

    async def serve(_config: ServiceSettings) -> None:
        pytest.fail("must not start")

    with pytest.raises(SystemExit) as exit_:
        lifecycle.run_service(serve, load=load, prefix="X_", argv=[])
    assert exit_.value.code == EXIT_USAGE
    assert capsys.readouterr().err == "error: X_NATS_URL must be set.\n"


@pytest.mark.parametrize(
    ("asked", "said"),
    [("--version", "noetl-worker 0."), ("--help", "NOETL_WORKER_HEALTH_PORT"), ("-h", "usage: ")],
)
def test_a_service_says_its_version_and_its_usage_without_settings(
    capsys: pytest.CaptureFixture[str], asked: str, said: str
) -> None:
    def refuse() -> ServiceSettings:
        raise SettingsError("nothing is set")

    async def serve(_config: ServiceSettings) -> None:
        pytest.fail("must not start")

    lifecycle.run_service(serve, load=refuse, prefix="NOETL_WORKER_", argv=[asked])
    assert said in capsys.readouterr().out


def test_settings_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(_config: ServiceSettings) -> None:
        pytest.fail("must not start")

    lifecycle.run_service(serve, load=load_config, prefix="X_", argv=["--print-settings"])
    assert "X_NATS_URL=nats://***@h:1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("service", "line"),
    [
        ("planner", 'noetl_work_lost_total{kind="command"} '),
        ("reaper", "noetl_leases_expired_total "),
        ("outbox", 'noetl_outbox_published_total{outcome="too_large"} '),
        ("worker", 'noetl_storage_admissions_total{outcome="refused",tier="shared"} '),
    ],
)
def test_a_service_shows_its_counters_before_anything_happened(service: str, line: str) -> None:
    # A process has one telemetry, and that of the tests has counted before.
    program = (
        "from noetl_chassis import telemetry\n"
        "from noetl_chassis.observability.started_counters import begin_counters\n"
        f"with telemetry.start_telemetry(service={service!r}, instance='one') as shown:\n"
        f"    begin_counters({service!r})\n"
        "    print(shown.render_metrics().decode())\n"
    )
    done = subprocess.run(  # noqa: S603 (the program above)
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"\n{line}0.0\n" in done.stdout
