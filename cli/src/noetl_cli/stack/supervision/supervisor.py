"""One process that starts the servers, then the services, and keeps them alive."""

import asyncio
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import psutil

from noetl_cli.errors import StackError
from noetl_cli.stack.home_folder import data_locations, stack_secrets, state
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.home_folder.options import StackOptions
from noetl_cli.stack.home_folder.state import StackPhase, StackState, StateBoard
from noetl_cli.stack.processes import process_spec, programs
from noetl_cli.stack.processes.loopback import HeldPorts
from noetl_cli.stack.processes.process_spec import ProcessSpec, ProcessTier
from noetl_cli.stack.servers import roles
from noetl_cli.stack.supervision import assembly, process_keeper
from noetl_cli.stack.supervision.assembly import StackAssembly, StartJob
from noetl_cli.stack.supervision.process_keeper import ProcessKeeper

TIDY_INTERVAL_S = 3.0
JOB_TIMEOUT_S = 120.0
JOB_LOG_LINES = 8

_log = logging.getLogger("noetl.supervisor")


class Supervisor:
    """Owns every process of one stack."""

    def __init__(
        self, *, home: StackHome, options: StackOptions, environ: Mapping[str, str]
    ) -> None:
        self._home = home
        self._options = options
        self._environ = dict(environ)
        self._stop = asyncio.Event()
        self._discards = False
        self._failure: StackError | None = None
        self._keepers: list[ProcessKeeper] = []
        self._held_ports = HeldPorts()
        self._before = state.find_state(home)
        self._board = StateBoard(home, _build_first_state(home, self._before))

    def stop(self) -> None:
        """Begin to end everything."""
        self._stop.set()

    def stop_and_discard(self) -> None:
        """Begin to end everything, whose data is deleted next."""
        self._discards = True
        self._stop.set()

    async def run(self) -> StackError | None:
        """Run until stopped; return what made it end early."""
        async with asyncio.TaskGroup() as group:
            tidying = group.create_task(self._tidy_regularly())
            starter = group.create_task(self._start_or_fail(group))
            await self._stop.wait()
            starter.cancel()
            self._board.enter_phase(StackPhase.STOPPING)
            await self._stop_everything()
            self._held_ports.close()
            tidying.cancel()
        failure = self._failure
        self._board.publish_changes(
            phase=StackPhase.STOPPED if failure is None else StackPhase.FAILED,
            failure=failure.message if failure else None,
            way_out=failure.way_out if failure else None,
        )
        return failure

    async def _start_or_fail(self, group: asyncio.TaskGroup) -> None:
        try:
            await self._start_everything(group)
        except StackError as error:
            _log.error("%s", error.message)
            self._failure = error
            self._stop.set()

    async def _start_everything(self, group: asyncio.TaskGroup) -> None:
        if self._before is not None:
            orphans = await asyncio.to_thread(process_keeper.end_orphans, self._before)
            if orphans:
                _log.warning("ended what an earlier supervisor left: %s", ", ".join(orphans))
            self._board.publish_changes(processes={})
        self._board.publish_changes(
            versions=await asyncio.to_thread(programs.list_program_versions)
        )
        plan = await asyncio.to_thread(self._assemble_stack)
        self._board.publish_changes(
            ports=plan.ports, urls=plan.urls, postgres_folder=plan.postgres_folder
        )
        await self.start_tier(group, plan.servers, apply=plan.apply)
        await asyncio.to_thread(self._create_roles, plan)
        for job in (plan.migrate, plan.apply):
            await asyncio.to_thread(self._run_job, job)
        await self.start_tier(group, plan.services, apply=None)
        await asyncio.to_thread(data_locations.write_data_locations, self._home, self._options)
        self._board.publish_changes(phase=StackPhase.READY)
        _log.info("ready: %s", ", ".join(sorted(self._board.current_state.processes)))

    async def start_tier(
        self, group: asyncio.TaskGroup, specs: tuple[ProcessSpec, ...], *, apply: StartJob | None
    ) -> None:
        """Start these processes together and wait until each has answered."""
        keepers = [self._make_keeper(spec, apply=apply) for spec in specs]
        self._keepers += keepers
        for keeper in keepers:
            group.create_task(keeper.keep_alive())
        for keeper in keepers:
            await keeper.wait_ready()

    def _make_keeper(self, spec: ProcessSpec, *, apply: StartJob | None) -> ProcessKeeper:
        async def declare_streams_again() -> None:
            # A broker that comes back may have lost its store; applying is harmless otherwise.
            if apply is None or spec.name != "nats":
                return
            try:
                await asyncio.to_thread(self._run_job, apply)
            except StackError as error:
                _log.warning("%s", error.message)

        if spec.tier is ProcessTier.SERVER:
            environ = process_spec.build_server_environ(spec, path=self._environ.get("PATH", ""))
        else:
            environ = {}
        return ProcessKeeper(
            spec,
            home=self._home,
            board=self._board,
            environ=environ,
            after_restart=declare_streams_again,
        )

    async def _stop_everything(self) -> None:
        # Services drain while the servers that they drain into still run.
        for tier in sorted(ProcessTier, reverse=True):
            keepers = [keeper for keeper in self._keepers if keeper.spec.tier is tier]
            for keeper in keepers:
                keeper.stop_keeping(discards=self._discards)
            for keeper in keepers:
                await keeper.wait_gone()

    def _assemble_stack(self) -> StackAssembly:
        keyring = stack_secrets.load_or_make_keyring(self._home)
        stack_secrets.write_owner_token(self._home, keyring)
        return assembly.assemble_stack(
            self._home,
            self._options,
            keyring=keyring,
            former=self._before,
            environ=self._environ,
            held=self._held_ports,
        )

    def _create_roles(self, plan: StackAssembly) -> None:
        wires, path = plan.wires, self._environ.get("PATH", "")
        if wires.only_tenant is not None:
            roles.create_own_database(
                admin_dsn=wires.admin_dsn,
                database=wires.database,
                tenant=wires.only_tenant,
                password_by_role=wires.password_by_role,
                path=path,
            )
            return
        roles.create_roles(
            admin_dsn=wires.admin_dsn,
            database=wires.database,
            password_by_role=wires.password_by_role,
            path=path,
        )

    def _run_job(self, job: StartJob) -> None:
        log = self._home.log_file(job.name)
        handle = process_spec.open_log(log)
        try:
            code = subprocess.run(  # noqa: S603 - our own commands
                job.argv,
                check=False,
                cwd=self._home.root,
                env=job.environ,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                timeout=JOB_TIMEOUT_S,
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        finally:
            os.close(handle)
        if code != 0:
            outcome = "did not end in time" if code is None else f"ended with {code}"
            end = "\n".join(log.read_text(errors="replace").splitlines()[-JOB_LOG_LINES:])
            raise StackError(f"The job {job.name} {outcome}:\n{end}", way_out=f"Read {log}.")

    async def _tidy_regularly(self) -> None:
        while True:
            await asyncio.sleep(TIDY_INTERVAL_S)
            await asyncio.to_thread(rotate_logs, self._home.logs_folder)
            self._board.write_missed()


async def run_supervisor(
    *, home: StackHome, options: StackOptions, environ: Mapping[str, str]
) -> StackError | None:
    """Run one stack until SIGTERM or SIGINT, or SIGQUIT when its data is deleted next."""
    supervisor = Supervisor(home=home, options=options, environ=environ)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    loop.add_signal_handler(signal.SIGQUIT, supervisor.stop_and_discard)
    return await supervisor.run()


def _build_first_state(home: StackHome, before: StackState | None) -> StackState:
    me = psutil.Process(os.getpid())
    return StackState(
        phase=StackPhase.STARTING,
        home=str(home.root),
        supervisor_pid=me.pid,
        supervisor_created=me.create_time(),
        started_at=datetime.fromtimestamp(me.create_time(), UTC).isoformat(timespec="seconds"),
        ports=before.ports if before else {},
        # Kept until their processes are known to be gone.
        processes=before.processes if before else {},
        postgres_folder=before.postgres_folder if before else None,
    )


LOG_BYTES_MAX = 16 * 1024 * 1024
COPIES_MAX = 3


def rotate_logs(folder: Path, *, bytes_max: int = LOG_BYTES_MAX) -> list[str]:
    """Rotate the logs that have grown too long; name them."""
    grown = [log for log in sorted(folder.glob("*.log")) if log.stat().st_size > bytes_max]
    for log in grown:
        for number in range(COPIES_MAX - 1, 0, -1):
            older = log.with_name(f"{log.name}.{number}")
            if older.exists():
                older.replace(log.with_name(f"{log.name}.{number + 1}"))
        _copy_log(log, log.with_name(f"{log.name}.1"))
        # Writers append, so the next line goes to the new beginning. Lines written between
        # the copy and this are lost: the price of not standing between a process and its log.
        with log.open("r+b") as file:
            file.truncate(0)
    return [log.name for log in grown]


def _copy_log(log: Path, copy: Path) -> None:
    """Copy a log, unless the disk is full: then emptying it is what helps."""
    try:
        shutil.copyfile(log, copy)
        copy.chmod(0o600)
    except OSError:
        copy.unlink(missing_ok=True)
