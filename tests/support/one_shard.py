"""One shard's planner over memory, which any message can be sent to and whose time is told."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs
from structlog.testing import capture_logs
from tests.support import informers
from tests.support.api import replace_services
from tests.support.invariants import assert_chained
from tests.support.manual_clock import ManualClock

from noetl_chassis.clock import SystemClock
from noetl_cli.local import system
from noetl_contracts import codec, subjects
from noetl_contracts.events import get_event_type
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import ShardFence
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import Fact, FactBatch
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.consumer import MemoryConsumer
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import DeadLetter, Message
from noetl_planner import wiring as planning
from noetl_planner.api.catalog import playbooks
from noetl_planner.facts import fact_intake
from noetl_planner.identity.served_tenants import ServedTenants
from noetl_planner.service import ShardPlanner
from noetl_playbook.source.problems import Level
from noetl_replay import rows
from noetl_replay.fold import fold_history
from noetl_replay.state import ExecutionState, build_empty_state, take_changes

TURNS_MAX = 60
NUMBER_MAX = 2**63 - 1
TENANT, ORGANIZATION = TenantId("default"), OrganizationId("default")
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: %s, path: %s}\nworkflow:\n"
GOOD = "  - {step: g, tool: {kind: noop}}\n"


async def _forever(turn: Callable[[], Awaitable[int]]) -> None:
    while True:
        await turn()


class World:
    """One shard's planner over memory that knows the `victims`, workflows by their names.

    `limits` are other bounds than a deployment's. Of the `tenants`, each has a planner of its own
    behind that of all others.
    """

    def __init__(
        self,
        folder: Path,
        victims: Mapping[str, str],
        *,
        tenants: Collection[str] = (),
        served: ServedTenants = fact_intake.EVERY_TENANT,
        **limits: int,
    ) -> None:
        self.runner = asyncio.Runner()
        self.clock = ManualClock(SystemClock().now())
        self.broker = MemoryBroker(
            topology.declare_topology(shard_count=1, tenants=tenants), self.clock
        )
        self.letters = MemoryDeadLetters(self.broker)
        self._stack = AsyncExitStack()
        self._keys = itertools.count(1)
        self.run = self.runner.run
        bounds = {**limits, "tenants": frozenset(tenants)}
        self._served = served
        self.planners, self.adapters = self.run(self._open(folder, victims, bounds))
        self.planner = self.planners[0]
        self._consumer = MemoryConsumer(self.broker, stream=topology.INGEST, name="planner-0")

    async def _open(
        self, folder: Path, victims: Mapping[str, str], limits: Mapping[str, Any]
    ) -> tuple[list[ShardPlanner], planning.Adapters]:
        await self.broker.ensure_streams()
        configs = system.load_settings({"NOETL_PLANNER_FETCH_WAIT_S": "0.01"}, folder)
        opened = await self._stack.enter_async_context(system.open_system(configs))
        adapters = structs.replace(
            opened.adapters,
            publisher=self.broker,
            hints=self.broker,
            dead_letters=self.letters,
            consumer=partial(MemoryConsumer, self.broker, stream=topology.INGEST),
            clock=self.clock,
        )
        for name, text in {**victims, "good": GOOD}.items():
            whole = HEAD % (name, name) + text
            await playbooks.register_text(opened.services, whole, level=Level.TOLERANT)
        (held,) = await adapters.shards.claim_shards(
            owner="p", lease_s=1e6, shards_max=1, shard_count=1
        )
        fence = ShardFence(shard=held.shard, owner="p", epoch=held.epoch)
        together = planning.build_shard_context(adapters, configs.planner, producer="p")
        together = structs.replace(
            together,
            limits=structs.replace(together.limits, **limits),
            served_tenants=self._served,
        )
        self.services = replace_services(
            opened.services, publisher=self.broker, hints=self.broker, clock=self.clock
        )
        self.loaded = together.payload_cache
        self._publishing = asyncio.ensure_future(
            _forever(together.message_publisher.publish_waiting)
        )
        return planning.build_shard_planners(fence, adapters, together, configs.planner), adapters

    def close(self) -> None:
        self._publishing.cancel()
        self.run(self._stack.aclose())
        self.runner.close()

    def batch(self, execution_id: ExecutionId, *told: Fact, **changes: Any) -> FactBatch:
        values: dict[str, Any] = {
            "key": f"k-{next(self._keys)}",
            "execution_id": execution_id,
            "tenant_id": TENANT,
            "organization_id": ORGANIZATION,
            "producer": "test",
            "facts": list(told),
        }
        return FactBatch(**{**values, **changes})

    def send(self, data: bytes, *, subject: str | None = None) -> None:
        """Put a message into the stream as a server would that checks nothing."""
        about = subject or subjects.build_ingest_subject(0, TENANT, ORGANIZATION)
        self.broker.store_message(
            Message(subject=about, message_id=f"m-{next(self._keys)}", data=data)
        )

    def begin(self, path: str) -> ExecutionId:
        """Have an execution begin; return its id."""
        execution_id = ExecutionId(str(self.adapters.snowflake.next_id()))
        request = facts.ExecutionRequested(path=path)
        self.send(codec.encode_json(self.batch(execution_id, request)))
        self.settle()
        return execution_id

    def settle(self) -> None:
        """Take turns until every message is settled, whatever it says."""
        for _ in range(TURNS_MAX):
            self.run(self.planner.run_turn())
            if self.run(self._consumer.count_pending()) == (0, 0):
                return
            self.clock.advance_by(15)
        raise AssertionError("a message is never settled")

    def begun(self) -> int:
        """Return how many executions have a history."""
        return len(self.adapters.ledger._store.head_by_execution)  # type: ignore[attr-defined]  # over memory

    def history(self, execution_id: ExecutionId) -> list[Envelope]:
        return self.run(self.adapters.ledger.read_events(execution_id, events_max=1000))

    def state(self, execution_id: ExecutionId) -> ExecutionState:
        return fold_history(
            build_empty_state(execution_id, TENANT, ORGANIZATION), self.history(execution_id)
        )

    def buried(self) -> list[DeadLetter]:
        return self.run(self.letters.list_letters(letters_max=100_000))


def assert_sound(world: World, execution_id: ExecutionId) -> None:
    """A history is its owner's, chained, folds, and its rows can be stored."""
    history = world.history(execution_id)
    assert_chained(history)
    owners = {(item.tenant_id, item.organization_id) for item in history}
    assert owners <= {(TENANT, ORGANIZATION)}
    folded = world.state(execution_id)
    shown = rows.build_changed_rows(folded, take_changes(folded))
    numbers = {
        f"{surface}.{name}": value
        for surface, listed in shown.items()
        for row in listed
        for name, value in row.items()
        if isinstance(value, int)
    }
    assert {name: item for name, item in numbers.items() if abs(item) > NUMBER_MAX} == {}


def tell(
    world: World, execution_id: ExecutionId, *spoilt: bytes, is_any: bool = False, **about: Any
) -> list[DeadLetter]:
    """Send spoilt messages between good ones of another execution; return what was buried.

    With `is_any` what it says may make the planner tell executions that there are none of.
    """
    before = len(world.buried())
    neighbour = world.begin("good")
    (live,) = world.state(neighbour).commands.values()
    good = facts.CommandCompleted(
        command_id=live.command_id,
        attempt=live.attempt,
        worker_id=informers.WORKER,
        result=informers.RESULT,
    )
    with capture_logs() as logged:
        world.send(codec.encode_json(world.batch(neighbour, facts.TimerDue())))
        for data in spoilt:
            world.send(data, **about)
        world.send(codec.encode_json(world.batch(neighbour, good)))
        world.settle()
    assert [item for item in logged if item["event"] in {"decision failed", "turn failed"}] == []
    assert get_event_type(world.history(neighbour)[-1].event) == "playbook.completed"
    assert_sound(world, execution_id)
    dead_letters = world.buried()[before:]
    told = [dead_letter for dead_letter in dead_letters if dead_letter.data not in spoilt]
    assert all(dead_letter.reason for dead_letter in dead_letters)
    assert {codec.decode_json(item.data)["producer"] for item in told} <= (
        {"p"} if is_any else set()
    )
    return dead_letters
