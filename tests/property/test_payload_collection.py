"""Whatever writers, readers and sweeps do at the same time, nothing that is mentioned is lost."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar

from hypothesis import example, given, settings
from hypothesis import strategies as st

from noetl_contracts import codec
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef
from noetl_storage.payloads import object_keys
from noetl_storage.payloads.garbage import GarbageAge, GarbageCollector, GarbageHorizon
from noetl_storage.payloads.memory import MemoryObjects
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.ports.errors import PayloadMissing
from noetl_storage.ports.payload_ports import Owner

P = ParamSpec("P")
R = TypeVar("R")

OWNER = Owner(tenant_id=TenantId("acme"), organization_id=OrganizationId("west"))
PLACE: dict[str, Any] = {"tenant_id": OWNER.tenant_id, "organization_id": OWNER.organization_id}
PATIENCE = GarbageAge(ttl=timedelta(days=2), shelf=timedelta(days=1))


class Hesitant:
    """Runs every call of the store between turns of the others."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    async def run_call(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        await self.rest()
        return call(*args, **kwargs)

    async def rest(self) -> None:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)


class SlowMoves(MemoryObjects):
    """Copies and removes with time in between, as stores without a move do."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now=now)
        self.half_moved: list[str] = []

    def move_object(self, key: str, to: str) -> None:
        self.store_object(to, self.read_object(key), "")
        self.half_moved.append(key)

    def finish_moves(self) -> None:
        while self.half_moved:
            self.delete_object(self.half_moved.pop())


@dataclass(kw_only=True)
class Ledger:
    """Which executions have begun, and what the events of each mention."""

    begun: dict[int, datetime] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    events: list[str] = field(default_factory=list)
    mentioned: list[PayloadRef] = field(default_factory=list)

    @asynccontextmanager
    async def hold_collector_lock(self, owner: Owner) -> AsyncIterator[bool]:
        """Whoever was taken for dead and goes on holds it as well as the next one."""
        yield True

    async def list_owners(self) -> list[Owner]:
        return [OWNER]

    async def find_held_since(self, owner: Owner) -> datetime | None:
        return min((at for n, at in self.begun.items() if n not in self.ended), default=None)

    async def iterate_mentioned(self, owner: Owner, digests: Any) -> Any:
        for event in list(self.events):
            await asyncio.sleep(0)
            yield {event} & set(digests)

    async def list_known_executions(self, owner: Owner, executions: Collection[str]) -> set[str]:
        return {str(number) for number in self.begun} & set(executions)


class Impatient(GarbageAge):
    """A collection that takes what it sees, whoever still works."""

    def compute_horizon(self, now: datetime, *, held_since: datetime | None) -> GarbageHorizon:
        return GarbageHorizon(suspect=now + timedelta(seconds=1), purge=now + timedelta(seconds=1))


@dataclass(kw_only=True)
class World:
    seed: int
    patience: GarbageAge = PATIENCE
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.objects = SlowMoves(lambda: self.now)
        self.runner = Hesitant(self.seed)
        self.store = PayloadStore(self.objects, runner=self.runner)
        self.collector = GarbageCollector(
            shelf=self.store, references=self.ledger, garbage_age=self.patience
        )

    async def execute(self, number: int) -> None:
        """Store a few of few contents, one inside another, then say so, as an execution does."""
        self.ledger.begun[number] = self.now
        for _ in range(self.random.randrange(1, 4)):
            inner = await self.put(f"inner {self.random.randrange(4)}")
            await self.runner.rest()
            outer = await self.put(
                f"outer {self.random.randrange(4)} {inner.uri}"
                if self.random.random() < 0.5
                else f"plain {self.random.randrange(6)}"
            )
            await self.runner.rest()
            await self.linger()
            if self.random.random() < 0.6:
                self.ledger.events.append(outer.sha256)
                self.ledger.mentioned.append(outer)
                if "outer" in (await self.store.read_payload(outer)).decode():
                    self.ledger.mentioned.append(inner)
        await self.runner.rest()
        self.ledger.ended.add(number)

    async def linger(self) -> None:
        """Let whole sweeps pass between storing and saying so, now and then."""
        for _ in range(self.random.choice([0, 10, 100])):
            await self.runner.rest()

    async def put(self, text: str) -> PayloadRef:
        return await self.store.put_payload(text.encode(), media_type="text/plain", **PLACE)

    async def sweep(self) -> None:
        await self.runner.rest()
        await self.collector.sweep_owner(OWNER, now=self.now, is_dry_run=False)

    async def sweeps(self) -> None:
        """Look again and again, whatever others look at and have not moved yet."""
        for _ in range(self.random.randrange(1, 4)):
            await self.sweep()

    async def finish_moves(self) -> None:
        for _ in range(8):
            await self.runner.rest()
            self.objects.finish_moves()

    async def check(self) -> None:
        for ref in self.ledger.mentioned:
            assert codec.digest_hex(await self.store.read_payload(ref)) == ref.sha256


async def live(seed: int, days: list[float], *, patience: GarbageAge = PATIENCE) -> World:
    """Let executions and sweeps run at once, day after day."""
    world = World(seed=seed, patience=patience)
    number = 0
    for day in days:
        async with asyncio.TaskGroup() as group:
            for _ in range(world.random.randrange(4)):
                number += 1
                group.create_task(world.execute(number))
            for _ in range(world.random.randrange(1, 4)):
                group.create_task(world.sweeps())
            group.create_task(world.finish_moves())
        world.objects.finish_moves()
        await world.check()
        world.now += timedelta(days=day)
    return world


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    days=st.lists(st.sampled_from([0.01, 0.5, 1.5, 3.0]), min_size=3, max_size=12),
)
# Put aside while an earlier copy, which had been brought back, was old enough to be purged.
@example(seed=408, days=[3.0, 0.01, 0.01, 3.0, 0.01])
def test_nothing_that_is_mentioned_is_ever_lost(seed: int, days: list[float]) -> None:
    asyncio.run(live(seed, days))


def test_a_collection_that_purges_without_patience_is_caught() -> None:
    """The property above fails where the grace is gone: it does look where things get lost."""
    impatient = Impatient(ttl=timedelta(0), shelf=timedelta(0))
    days = [0.01, 0.5, 0.5]
    lost = 0
    for seed in range(20):
        try:
            asyncio.run(live(seed, days, patience=impatient))
        except* PayloadMissing:
            lost += 1
        asyncio.run(live(seed, days))
    assert lost > 0


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_what_nobody_mentions_goes_in_the_end(seed: int) -> None:
    async def play() -> None:
        world = await live(seed, [0.5, 1.5, 3.0])
        for _ in range(3):
            world.now += timedelta(days=4)
            await world.sweep()
            world.objects.finish_moves()
        kept = {key.rpartition("/")[2] for key in world.objects.bytes_by_key}
        assert kept == {ref.sha256 for ref in world.ledger.mentioned}

    asyncio.run(play())


async def test_content_that_comes_back_while_another_still_moves_it_is_found() -> None:
    world = World(seed=1)
    ref = await world.put("wanted again")
    world.now += timedelta(days=3)
    await world.sweep()
    half_moved = world.objects.half_moved.copy()
    world.objects.finish_moves()
    world.ledger.events.append(ref.sha256)
    world.ledger.mentioned.append(ref)
    await world.sweep()
    # Only now the first collector removes what it had put aside: again, for the second one.
    world.objects.half_moved += half_moved
    world.objects.finish_moves()
    await world.check()
    world.now += timedelta(days=3)
    for _ in range(2):
        await world.sweep()
        await world.check()
    assert len(world.objects.bytes_by_key) == 1


async def test_a_dry_run_changes_nothing_and_says_what_it_would_do() -> None:
    world = World(seed=1)
    await world.put("nobody wants it")
    world.now += timedelta(days=3)
    before = dict(world.objects.bytes_by_key)

    owner = await world.collector.sweep_owner(OWNER, now=world.now, is_dry_run=True)

    assert (len(owner.garbage), owner.count_garbage_bytes, owner.shelved) == (1, 15, 0)
    assert world.objects.bytes_by_key == before


async def test_what_an_execution_may_still_mention_stays() -> None:
    world = World(seed=1)
    world.ledger.begun[1] = world.now
    await world.put("stored by an execution that has waited since")
    world.now += timedelta(days=400)
    assert (await world.collector.sweep_owner(OWNER, now=world.now, is_dry_run=True)).garbage == []
    world.ledger.ended.add(1)
    assert (
        len((await world.collector.sweep_owner(OWNER, now=world.now, is_dry_run=True)).garbage) == 1
    )


async def test_content_stored_in_the_middle_of_its_move_comes_back() -> None:
    world = World(seed=1)
    ref = await world.put("wanted again")
    world.now += timedelta(days=3)
    world.ledger.begun[1] = world.now
    world.ledger.ended.add(1)
    await world.sweep()
    await world.put("wanted again")
    world.objects.finish_moves()
    assert world.objects.find_object(f"tenant/acme/org/west/payloads/sha256/{ref.sha256}") is None
    world.ledger.events.append(ref.sha256)
    world.ledger.mentioned.append(ref)

    for _ in range(3):
        world.now += timedelta(days=3)
        await world.sweep()
        world.objects.finish_moves()
        await world.check()


async def test_what_is_put_aside_has_the_whole_grace_though_an_earlier_copy_lies_there() -> None:
    world = World(seed=1)
    ref = await world.put("came back once")
    key = object_keys.build_owned_content_key(OWNER, ref.sha256)
    shelved = object_keys.build_shelf_key(key)
    world.objects.store_object(shelved, world.objects.read_object(key), "")
    world.now += timedelta(days=9)
    await world.sweep()
    world.objects.finish_moves()
    assert await world.store.has_payload(ref), "put aside and purged in one sweep"
    world.now += timedelta(days=9)
    await world.sweep()
    assert not await world.store.has_payload(ref)


async def test_content_that_was_stored_again_since_it_was_listed_is_not_moved() -> None:
    world = World(seed=1)
    ref = await world.put("wanted again")
    world.now += timedelta(days=3)
    sweep = world.collector.sweep_owner(OWNER, now=world.now, is_dry_run=False)
    listing = world.ledger.iterate_mentioned

    async def meanwhile(owner: Owner, digests: Any) -> Any:
        await world.put("wanted again")
        async for found in listing(owner, digests):
            yield found

    world.ledger.iterate_mentioned = meanwhile
    assert (await sweep).shelved == 0
    assert await world.store.read_payload(ref) == b"wanted again"


async def test_named_objects_go_when_what_they_are_for_is_gone() -> None:
    world = World(seed=1)
    world.ledger.begun[7] = world.now
    cut = await world.put("a collection that was cut")
    gone = codec.digest_hex(b"a collection that is gone")
    names = {
        "frames/7/1": True,
        "frames/8/1": False,
        "walks/7/a.1-1": True,
        "walks/8/a.1-1": False,
        "scripts/7/d1": True,
        "scripts/8/d1": False,
        "rejects/7/t/d1/0": True,
        "rejects/8/t/d1/0": False,
        "frames/8/1/takeover-2": False,
        "logs/7/20261126T2345/12345678-0123456789ab-5.1.00000005-1": True,
        "logs/8/20261126T2345/12345678-0123456789ab-5.1.00000005-1": False,
        "workspaces/7/0000000001": True,
        "workspaces/8/0000000001": False,
        "frames/not-a-number/1": True,
        f"frames/{'9' * 30}/1": True,
        "waves/7/token/frame-1": False,
        f"slices/{cut.sha256}": True,
        f"slices/{gone}": False,
        "artifacts/report/versions/0000000001": False,
        "artifacts/report/versions/0000000002": True,
        "artifacts/report/q1/versions/0000000001": True,
        "credentials/pg/0000000001": True,
        "tables/orders": True,
    }
    for name in names:
        await world.store.put_named(name, b"x", **PLACE)
    world.ledger.events.append(cut.sha256)
    world.now += timedelta(days=400)
    # Work that began before them goes on, and then it has ended.
    assert (await world.collector.sweep_owner(OWNER, now=world.now, is_dry_run=False)).names == []
    world.ledger.ended.add(7)
    await world.store.put_named("waves/7/new/frame-1", b"x", **PLACE)
    dry = await world.collector.sweep_owner(OWNER, now=world.now, is_dry_run=True)
    assert {item.name for item in dry.names} == {name for name, stays in names.items() if not stays}

    done = await world.collector.sweep_owner(OWNER, now=world.now, is_dry_run=False)

    assert done.removed == len(dry.names)
    left = await world.store.list_names("", **PLACE)
    assert left == sorted(
        [*(name for name, stays in names.items() if stays), "waves/7/new/frame-1"]
    )
