"""One process that starts the servers, then the services, and keeps them alive."""

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime

import psutil

from noetl_cli.failures import StackError
from noetl_cli.stack import (
    assembly,
    data_places,
    keyring,
    launch,
    orphans,
    roles,
    rotation,
    state,
    versions,
)
from noetl_cli.stack.assembly import Assembly, Job
from noetl_cli.stack.board import Board
from noetl_cli.stack.home import Home
from noetl_cli.stack.keeper import Keeper
from noetl_cli.stack.options import Options
from noetl_cli.stack.specs import ProcessSpec, Tier
from noetl_cli.stack.state import Phase, State

TIDY_INTERVAL_S = 3.0
JOB_TIMEOUT_S = 120.0
JOB_LOG_LINES = 8

_log = logging.getLogger("noetl.supervisor")


class Supervisor:
    """Owns every process of one stack."""

    def __init__(self, *, home: Home, options: Options, environ: Mapping[str, str]) -> None:
        self._home = home
        self._options = options
        self._environ = dict(environ)
        self._stop = asyncio.Event()
        self._discards = False
        self._failure: StackError | None = None
        self._keepers: list[Keeper] = []
        self._before = state.find(home)
        self._board = Board(home, _first_state(home, self._before))

    def stop(self) -> None:
        """Begin to end everything."""
        self._stop.set()

    def discard(self) -> None:
        """Begin to end everything, whose data is deleted next."""
        self._discards = True
        self._stop.set()

    async def run(self) -> StackError | None:
        """Run until stopped; return what made it end early."""
        async with asyncio.TaskGroup() as group:
            tidying = group.create_task(self._tidy())
            starter = group.create_task(self._bring_up(group))
            await self._stop.wait()
            starter.cancel()
            self._board.enter(Phase.STOPPING)
            await self._take_down()
            tidying.cancel()
        failure = self._failure
        self._board.publish(
            phase=Phase.STOPPED if failure is None else Phase.FAILED,
            failure=failure.message if failure else None,
            way_out=failure.way_out if failure else None,
        )
        return failure

    async def _bring_up(self, group: asyncio.TaskGroup) -> None:
        try:
            await self._start_everything(group)
        except StackError as error:
            _log.error("%s", error.message)
            self._failure = error
            self._stop.set()

    async def _start_everything(self, group: asyncio.TaskGroup) -> None:
        if self._before is not None:
            left = await asyncio.to_thread(orphans.end, self._before)
            if left:
                _log.warning("ended what an earlier supervisor left: %s", ", ".join(left))
            self._board.publish(processes={})
        self._board.publish(versions=await asyncio.to_thread(versions.installed))
        plan = await asyncio.to_thread(self._assemble)
        self._board.publish(ports=plan.ports, urls=plan.urls, postgres_folder=plan.postgres_folder)
        await self.start_tier(group, plan.servers, apply=plan.apply)
        await asyncio.to_thread(self._create_roles, plan)
        for job in (plan.migrate, plan.apply):
            await asyncio.to_thread(self._run_job, job)
        await self.start_tier(group, plan.services, apply=None)
        await asyncio.to_thread(data_places.write_places, self._home, self._options)
        self._board.publish(phase=Phase.READY)
        _log.info("ready: %s", ", ".join(sorted(self._board.state.processes)))

    async def start_tier(
        self, group: asyncio.TaskGroup, specs: tuple[ProcessSpec, ...], *, apply: Job | None
    ) -> None:
        """Start these processes together and wait until each has answered."""
        keepers = [self._keeper(spec, apply=apply) for spec in specs]
        self._keepers += keepers
        for keeper in keepers:
            group.create_task(keeper.keep())
        for keeper in keepers:
            await keeper.wait_ready()

    def _keeper(self, spec: ProcessSpec, *, apply: Job | None) -> Keeper:
        async def declare_streams() -> None:
            # A broker that comes back may have lost its store; applying is harmless otherwise.
            if apply is None or spec.name != "nats":
                return
            try:
                await asyncio.to_thread(self._run_job, apply)
            except StackError as error:
                _log.warning("%s", error.message)

        if spec.tier is Tier.SERVER:
            environ = launch.server_environ(spec, path=self._environ.get("PATH", ""))
        else:
            environ = {}
        return Keeper(
            spec,
            home=self._home,
            board=self._board,
            environ=environ,
            after_restart=declare_streams,
        )

    async def _take_down(self) -> None:
        # Services drain while the servers that they drain into still run.
        for tier in sorted(Tier, reverse=True):
            keepers = [keeper for keeper in self._keepers if keeper.spec.tier is tier]
            for keeper in keepers:
                keeper.let_go(discards=self._discards)
            for keeper in keepers:
                await keeper.wait_gone()

    def _assemble(self) -> Assembly:
        return assembly.assemble(
            self._home,
            self._options,
            keyring=keyring.load_or_make(self._home),
            former=self._before,
            environ=self._environ,
        )

    def _create_roles(self, plan: Assembly) -> None:
        roles.create(
            admin_dsn=plan.wires.admin_dsn,
            database=plan.wires.database,
            password_by_role=plan.wires.password_by_role,
            path=self._environ.get("PATH", ""),
        )

    def _run_job(self, job: Job) -> None:
        log = self._home.log(job.name)
        handle = launch.open_log(log)
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
            how = "did not end in time" if code is None else f"ended with {code}"
            end = "\n".join(log.read_text(errors="replace").splitlines()[-JOB_LOG_LINES:])
            raise StackError(f"The job {job.name} {how}:\n{end}", way_out=f"Read {log}.")

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_INTERVAL_S)
            await asyncio.to_thread(rotation.rotate, self._home.logs)
            self._board.catch_up()


async def supervise(
    *, home: Home, options: Options, environ: Mapping[str, str]
) -> StackError | None:
    """Run one stack until SIGTERM or SIGINT, or SIGQUIT when its data is deleted next."""
    supervisor = Supervisor(home=home, options=options, environ=environ)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    loop.add_signal_handler(signal.SIGQUIT, supervisor.discard)
    return await supervisor.run()


def _first_state(home: Home, before: State | None) -> State:
    me = psutil.Process(os.getpid())
    return State(
        phase=Phase.STARTING,
        home=str(home.root),
        supervisor_pid=me.pid,
        supervisor_created=me.create_time(),
        started_at=datetime.fromtimestamp(me.create_time(), UTC).isoformat(timespec="seconds"),
        ports=before.ports if before else {},
        # Kept until their processes are known to be gone.
        processes=before.processes if before else {},
        postgres_folder=before.postgres_folder if before else None,
    )
