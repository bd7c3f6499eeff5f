"""One simulated run of the whole system by its seed: weather, processes, playbooks, verdict."""

import asyncio
import contextlib
import contextvars
import gc
import logging
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import structlog
from msgspec import Struct
from tests.simulation import services, verdict
from tests.simulation.broker import FaultyBroker
from tests.simulation.fate import Fate, Weather, draw_weather
from tests.simulation.fleet import Post, Process
from tests.simulation.outside import Claims, Sink, Site, Table
from tests.simulation.services import LEASE_S, SHARDS
from tests.simulation.virtual import OWNER, Stuck, VirtualClock, VirtualLoop
from tests.simulation.witness import Witness
from tests.simulation.workflows import CHILD, Signal, Workflow, child, draw_workflow, signal_key

from noetl_chassis import identity
from noetl_contracts.errors import NoetlError
from noetl_contracts.ids import ExecutionId
from noetl_messaging.memory.registers import MemoryRegisters
from noetl_messaging.streams import topology
from noetl_planner.api.catalog import playbooks
from noetl_planner.api.executions import control_requests, start_requests
from noetl_planner.api.executions.start_requests import ExecuteBody
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.triggers import inbox
from noetl_playbook.source.problems import Level
from noetl_storage.memory.store import MemoryStore
from noetl_storage.payloads.memory import MemoryPayloads

TENANTS = ("acme", "umbra")
# Virtual seconds from the end of all faults until everything must have come to rest.
PATIENCE_S = 300.0
# How long after the weather somebody still asks that a held execution goes on.
INSISTING_S = 120.0
_ANSWER_S = 4.0
_LOOK_S = 0.5
_AWAY_S = 2.0
_OVER = ("playbook.completed", "playbook.failed", "execution.cancelled")


class RequestedExecution(Struct, kw_only=True):
    """An execution that somebody asked for."""

    workflow: Workflow
    tenant: str
    after_s: float
    cancel_after_s: float | None = None
    pause_after_s: float | None = None
    execution_id: ExecutionId | None = None


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of a seed."""

    seed: int
    digest: str
    violations: list[str]
    events: int
    steps: int
    virtual_s: float
    faults: dict[str, int]
    trace: str = ""


class World:
    """Everything that one run consists of."""

    def __init__(self, seed: int, *, weather: Weather | None = None) -> None:
        self.chance = random.Random(seed)
        drawn = draw_weather(self.chance)
        self.loop = VirtualLoop(self.chance, in_order=self.chance.random() < 0.2)
        self.clock = VirtualClock(self.loop)
        self.fate = Fate(self.chance, weather or drawn, now=self.loop.time)
        self.witness = Witness(self.fate)
        self.store = MemoryStore(clock=self.clock)
        self.payloads = MemoryPayloads()
        self.registers = MemoryRegisters()
        self.sink = Sink()
        self.claims = Claims()
        self.projectors = self.chance.choice([1, 1, 2])
        declared = topology.declare_topology(
            shard_count=SHARDS, projector_count=self.projectors, lease_s=LEASE_S
        )
        self.broker = FaultyBroker(declared, self.clock, fate=self.fate, on_death=self._lose_broker)
        self.witness.store, self.witness.broker = self.store, self.broker
        self.asked: list[RequestedExecution] = []
        self.posts: list[Post] = []
        # The latest process of each post that answers, and its doors by tenant.
        self._doors: dict[str, tuple[Process, dict[str, ApiServices]]] = {}

    async def run(self) -> None:
        """Prepare in calm, run in the weather, heal, drain, and judge."""
        self.fate.is_healed = True
        await self.broker.ensure_streams()
        await self._register()
        self.fate.is_healed = False
        self._begin()
        async with asyncio.TaskGroup() as tasks:
            storms = [tasks.create_task(item) for item in (self._wipe(), self._part())]
            wishes_ = [tasks.create_task(self._ask(item)) for item in self.asked]
            await self._weathered(wishes_)
            self._heal()
            for storm in storms:
                storm.cancel()
        await self._drained()
        await verdict.judge(self)

    def site(self, process: Process) -> Site:
        """Play the outside world for a worker."""
        return Site(self.sink, process)

    def table(self, process: Process) -> Table:
        """Play the database that a worker's cursors claim from."""
        return Table(self.claims, process)

    async def _register(self) -> None:
        calm = Process("registrar", node=1, loop=self.loop, fate=self.fate, witness=self.witness)
        for number in range(self.chance.randint(1, 2)):
            workflow = draw_workflow(self.chance, f"w{number}")
            asked = [self._asked(workflow) for _ in range(self.chance.randint(1, 2))]
            for tenant in dict.fromkeys(item.tenant for item in asked):
                doors = services.api(self, calm, tenant)
                await playbooks.register_text(doors, workflow.source, level=Level.STRICT)
                if CHILD in workflow.source:
                    await playbooks.register_text(doors, child(), level=Level.STRICT)
            self.asked += asked

    def _asked(self, workflow: Workflow) -> RequestedExecution:
        chance = self.chance
        return RequestedExecution(
            workflow=workflow,
            tenant=chance.choice(TENANTS),
            after_s=chance.random() * 3.0,
            cancel_after_s=chance.random() * 6.0 if chance.random() < 0.15 else None,
            pause_after_s=chance.random() * 3.0 if chance.random() < 0.1 else None,
        )

    def _begin(self) -> None:
        chance = self.chance
        wanted: list[tuple[str, Callable[[Process], Awaitable[None]]]] = [("api", self._answer)]
        wanted += self._several("planner", chance.choice([1, 2, 3]), services.plan)
        wanted += self._several("worker", chance.choice([1, 2, 3]), services.work)
        wanted += self._several("outbox", chance.choice([1, 2]), services.publish)
        wanted += self._several("reaper", chance.choice([1, 2]), services.sweep)
        for index in range(self.projectors):
            turn = partial(services.project, self, index=index, count=self.projectors)
            wanted += [(f"projector-{index}{twin}", turn) for twin in chance.choice(["a", "ab"])]
        for number, (name, serve) in enumerate(wanted):
            post = Post(name, serve, loop=self.loop, fate=self.fate, witness=self.witness)
            self.posts.append(post)
            post.begin(node=number + 2)

    def _several(self, name: str, count: int, serve: Any) -> list[tuple[str, Any]]:
        return [(f"{name}-{number}", partial(serve, self)) for number in range(count)]

    async def _answer(self, process: Process) -> None:
        """Be the API: what is asked of it runs in its process."""
        self.open_doors(process, lambda tenant: services.api(self, process, tenant))
        await process.stop.wait()

    def open_doors(self, process: Process, build_services: Callable[[str], ApiServices]) -> None:
        """Let a process be asked, in the place of its predecessor."""
        post = process.name.rpartition(".")[0]
        self._doors[post] = process, {tenant: build_services(tenant) for tenant in TENANTS}

    async def _call(self, tenant: str, call: Callable[[ApiServices], Any]) -> Any:
        """Ask the API until it answers, as a client does."""
        while True:
            alive = [item for item in self._doors.values() if not item[0].is_dead]
            if alive:
                process, doors = self.chance.choice(alive)
                context = contextvars.Context()
                context.run(OWNER.set, process)
                answer = self.loop.create_task(call(doors[tenant]), context=context)
                answer.add_done_callback(_heard)
                done, _ = await asyncio.wait([answer], timeout=_ANSWER_S)
                if done and answer.exception() is None:
                    return answer.result()
                if done and not isinstance(answer.exception(), NoetlError | TimeoutError):
                    raise answer.exception() or AssertionError
            await asyncio.sleep(0.5)

    async def _ask(self, requested_execution: RequestedExecution) -> None:
        await asyncio.sleep(requested_execution.after_s)
        key = f"asked-{self.asked.index(requested_execution)}"
        body = ExecuteBody(path=requested_execution.workflow.path, idempotency_key=key)
        accepted = await self._call(
            requested_execution.tenant,
            lambda doors: start_requests.execute_playbook(doors, body, None),
        )
        requested_execution.execution_id = accepted.execution_id
        async with asyncio.TaskGroup() as tasks:
            for signal in requested_execution.workflow.signals:
                tasks.create_task(self._signal(requested_execution, signal))
            if requested_execution.cancel_after_s is not None:
                tasks.create_task(
                    self._wish(
                        requested_execution,
                        requested_execution.cancel_after_s,
                        control_requests.request_cancel,
                    )
                )
            if requested_execution.pause_after_s is not None:
                tasks.create_task(self._pause(requested_execution))

    async def _signal(self, requested_execution: RequestedExecution, signal: Signal) -> None:
        await asyncio.sleep(self.chance.random() * 8.0)
        key = signal_key(requested_execution.execution_id or "", signal.step)
        await self._call(
            requested_execution.tenant,
            lambda doors: inbox.keep_signal(doors, key, {"n": signal.value}),
        )

    async def _pause(self, requested_execution: RequestedExecution) -> None:
        """Hold an execution for a while; a wish may overtake another, so insist on the last."""
        await self._wish(
            requested_execution,
            requested_execution.pause_after_s or 0.0,
            control_requests.request_pause,
        )
        until_s = self.fate.weather.until_s + INSISTING_S
        while (
            requested_execution.execution_id not in self.witness.over and self.loop.time() < until_s
        ):
            await self._wish(requested_execution, self.chance.random() * 6.0, _resume)

    async def _wish(
        self, requested_execution: RequestedExecution, after_s: float, wish: Any
    ) -> None:
        await asyncio.sleep(after_s)
        execution_id = requested_execution.execution_id or ""
        with contextlib.suppress(ApiError):
            # What its projection does not show, or shows as over, has nothing to wish for.
            await self._call(
                requested_execution.tenant, lambda doors: wish(doors, execution_id, None)
            )

    async def _weathered(self, asking: list["asyncio.Task[None]"]) -> None:
        until_s = self.fate.weather.until_s
        while self.loop.time() < until_s:
            await asyncio.sleep(_LOOK_S)
            if all(task.done() for task in asking) and self._is_over():
                return

    def _heal(self) -> None:
        self.fate.note("all is well again")
        self.fate.is_healed = True
        for post in self.posts:
            if post.process is not None:
                post.process.go_on()

    async def _wipe(self) -> None:
        while (pause_s := self.fate.next_strike("wipe")) != float("inf"):
            await asyncio.sleep(pause_s)
            self.fate.count("wipe")
            self.fate.note("the broker's store is gone")
            self.broker.wipe_all()

    async def _part(self) -> None:
        chance = self.chance
        while (pause_s := self.fate.next_strike("partition")) != float("inf"):
            await asyncio.sleep(pause_s)
            self.fate.count("partition")
            server = chance.choice(["ledger", "broker", "payloads"])
            seconds = self.fate.cut_s()
            cut = self.posts if chance.random() < 0.3 else [chance.choice(self.posts)]
            for post in cut:
                if post.process is not None:
                    post.process.cut_off(server, seconds)

    def _lose_broker(self) -> None:
        """Have nobody reach the broker before it has started again."""
        away_s = self.chance.random() * _AWAY_S
        for post in self.posts:
            if post.process is not None:
                post.process.cut_off("broker", away_s)

    def _is_over(self) -> bool:
        begun, over = self.store.head_by_execution, self.witness.over
        return over >= begun.keys() and all(item.execution_id in over for item in self.asked)

    def _is_drained(self) -> bool:
        heads, positions = self.store.head_by_execution, self.store.position_by_execution
        return (
            self._is_over()
            and not self.store.message_by_id
            and all(positions.get(item) == head.version for item, head in heads.items())
            and all(item.settled_at is not None for item in self.store.request_by_id.values())
        )

    async def _drained(self) -> None:
        deadline = self.loop.time() + PATIENCE_S
        while not self._is_drained():
            await asyncio.sleep(_LOOK_S)
            if self.loop.time() > deadline:
                self.witness.object(f"not at rest after {PATIENCE_S:.0f} s: {verdict.unrest(self)}")
                return


async def _resume(doors: ApiServices, execution_id: str, _reason: str | None) -> Any:
    return await control_requests.request_resume(doors, execution_id)


def _heard(answer: "asyncio.Task[Any]") -> None:
    """Hear of a failure whose caller has given up."""
    if not answer.cancelled():
        answer.exception()


def simulate(seed: int, *, weather: Weather | None = None, keeps_trace: bool = False) -> Outcome:
    """Run one seed to its verdict."""
    with _sealed_off(seed) as listen:
        world = World(seed, weather=weather)
        listen(world.witness.heard)
        try:
            world.loop.run_until_complete(world.run())
        except Stuck as failure:
            world.witness.object(str(failure))
        finally:
            events = sum(map(len, world.store.history_by_execution.values()))
            outcome = Outcome(
                seed=seed,
                digest=world.fate.digest(),
                violations=list(world.witness.violations),
                events=events,
                steps=world.loop.steps,
                virtual_s=round(world.loop.time(), 3),
                faults=world.fate.counts,
                trace=world.fate.trace() if keeps_trace or world.witness.violations else "",
            )
            _abandon(world)
    return outcome


@contextmanager
def _sealed_off(seed: int) -> Iterator[Callable[[Callable[[dict[str, Any]], None]], None]]:
    """Let chance, identities and logs come from the run alone while the block lasts."""
    listeners: list[Callable[[dict[str, Any]], None]] = []

    def hear(_logger: Any, _method: str, words: Any) -> Any:
        for listener in listeners:
            listener(words)
        raise structlog.DropEvent

    chance = random.Random(f"identity-{seed}")
    logs, noise, token = structlog.get_config(), identity.draw_noise, identity.mint_token
    shared = random.getstate()
    structlog.configure(processors=[hear], cache_logger_on_first_use=False)
    random.seed(seed)
    identity.draw_noise = chance.random
    identity.mint_token = lambda: f"{chance.getrandbits(128):032x}"
    is_collecting = gc.isenabled()
    gc.disable()
    # What was there before is not looked at again when this run is cleared away.
    gc.freeze()
    try:
        yield listeners.append
    finally:
        identity.draw_noise, identity.mint_token = noise, token
        random.setstate(shared)
        structlog.configure(**logs)
        gc.unfreeze()
        if is_collecting:
            gc.enable()


def _abandon(world: World) -> None:
    """Let go of everything that still runs: nobody hears its last words."""
    world.loop.set_exception_handler(lambda *_: None)
    unraisable, muted = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda _: None
    logging.disable(logging.CRITICAL)
    try:
        for post in world.posts:
            post.bury()
        for task in asyncio.all_tasks(world.loop):
            task._log_destroy_pending = False
            with contextlib.suppress(BaseException):
                task.get_coro().close()
        world.loop._ready.clear()
        world.loop._scheduled.clear()
        world.posts.clear()
        gc.collect()
    finally:
        sys.unraisablehook = unraisable
        logging.disable(muted)
    world.loop.close()
