"""Takes commands from the lanes of a pool: every tenant its share, the most urgent lane first."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from noetl_contracts import subjects
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Consumer, Delivery
from noetl_worker.domain.admission import allot_places

# A worker with less room than this for each lane looks again soon at what it does not wait for.
PLENTY = 8
LOOK_S = 0.25
# One turn of so many begins with the least urgent lane, so that it moves on as well.
FAIR_TURNS = 8
# The share of tenants that have none of their own: no tenant is called so.
OTHERS = ""


class _LaneWait(Struct, frozen=True, kw_only=True):
    """A wait for messages of one lane, and how many it may bring."""

    task: asyncio.Task[list[Delivery] | Exception]
    messages_max: int


class Intake:
    """Owns one consumer a lane.

    With room for all lanes, each is asked for what it has, or for what comes first: one request.
    With less, what is there is taken in the order of the lanes, now and then in the opposite order,
    and when nothing is, one message of each lane is waited for. A wait is never broken off, since
    what came meanwhile would be lost to us until its lease had passed: what it may bring counts
    against the room of the turns that follow. Of a lane that had less than it was asked for no more
    than one is waited for, so that lanes without work do not take room from the others.
    """

    def __init__(self, lanes: Sequence[Consumer]) -> None:
        self._lanes = tuple(lanes)
        self._turns = 0
        self._waits: dict[int, _LaneWait] = {}
        self._quiet = set(range(len(self._lanes)))
        self._capacity_signal = CapacitySignal()

    async def fetch_deliveries(
        self, group: asyncio.TaskGroup, *, free: int, messages_max: int, wait_s: float
    ) -> list[Delivery]:
        """Return at most `free` deliveries, waiting up to `wait_s` for the first; may be none.

        Raises `MessagingUnavailable`.
        """
        more_room = self._capacity_signal.next_ended()
        deliveries = self.take_arrived()
        room = free - len(deliveries) - self.promised_messages
        if room >= self.plentiful_room:
            lane_messages = max(1, min(messages_max, room // len(self._lanes)))
            self.start_waits(group, room, wait_s, messages_max=lane_messages)
        else:
            deliveries += await self.fetch_ready(min(room, messages_max), has_some=bool(deliveries))
        if deliveries:
            return deliveries
        self.start_waits(group, room, wait_s if free >= self.plentiful_room else LOOK_S)
        await wait_for_any_intake(self, more_room=more_room)
        return self.take_arrived()

    def count_started(self, subject: str) -> None:
        """Do nothing: who has how much matters where tenants have shares."""

    def count_ended(self, subject: str) -> None:  # noqa: ARG002 - whose it was matters to shares
        """Look again at what had no room."""
        self._capacity_signal.notify_ended()

    async def fetch_ready(self, room: int, *, has_some: bool) -> list[Delivery]:
        """Take what is there already; a failure after something came is met again next time."""
        deliveries: list[Delivery] = []
        try:
            for lane in self._list_lanes_in_turn():
                if room > len(deliveries):
                    free = room - len(deliveries)
                    lane_deliveries = await self._lanes[lane].fetch_batch(
                        messages_max=free, wait_s=0.0
                    )
                    self._note_quiet_lane(
                        lane, requested_count=free, received_count=len(lane_deliveries)
                    )
                    deliveries += lane_deliveries
        except MessagingUnavailable:
            if not (deliveries or has_some):
                raise
        return deliveries

    @property
    def plentiful_room(self) -> int:
        """Return the room from which on all lanes can be waited for at leisure."""
        return PLENTY * len(self._lanes)

    async def close(self) -> list[Delivery]:
        """Wait for what was asked for, and return what came."""
        if self._waits:
            await asyncio.wait(self.pending_waits)
        outcomes = [wait.result() for wait in self.pending_waits]
        return [
            delivery
            for outcome in outcomes
            if not isinstance(outcome, Exception)
            for delivery in outcome
        ]

    @property
    def pending_waits(self) -> tuple[asyncio.Task[list[Delivery] | Exception], ...]:
        """Return the waits that go on."""
        return tuple(wait.task for wait in self._waits.values())

    @property
    def promised_messages(self) -> int:
        """Return how many messages the waits may bring."""
        return sum(wait.messages_max for wait in self._waits.values())

    @property
    def is_waiting_on_all(self) -> bool:
        """Tell whether every lane is waited for."""
        return len(self._waits) == len(self._lanes)

    def start_waits(
        self, group: asyncio.TaskGroup, room: int, wait_s: float, *, messages_max: int = 1
    ) -> None:
        """Wait for each lane that is not waited for, as far as there is room."""
        for lane in self._list_idle_lanes():
            lane_messages_max = 1 if lane in self._quiet else messages_max
            if lane_messages_max > room:
                return
            room -= lane_messages_max
            task = group.create_task(self._await_deliveries(lane, wait_s, lane_messages_max))
            self._waits[lane] = _LaneWait(task=task, messages_max=lane_messages_max)

    def _list_lanes_in_turn(self) -> list[int]:
        self._turns += 1
        is_fair = self._turns % FAIR_TURNS == 0
        return self._list_idle_lanes()[::-1] if is_fair else self._list_idle_lanes()

    def _list_idle_lanes(self) -> list[int]:
        return [lane for lane in range(len(self._lanes)) if lane not in self._waits]

    def take_arrived(self) -> list[Delivery]:
        """Collect the waits that have ended, the most urgent lane first; raises their failure."""
        deliveries: list[Delivery] = []
        for lane in [lane for lane in sorted(self._waits) if self._waits[lane].task.done()]:
            outcome = self._waits[lane].task.result()
            if not isinstance(outcome, Exception):
                self._note_quiet_lane(
                    lane,
                    requested_count=self._waits[lane].messages_max,
                    received_count=len(outcome),
                )
                deliveries += outcome
            elif deliveries:
                # Met again at the next turn: what came before it must not be lost.
                continue
            del self._waits[lane]
            if isinstance(outcome, Exception):
                raise outcome
        return deliveries

    def _note_quiet_lane(self, lane: int, *, requested_count: int, received_count: int) -> None:
        """Remember which lanes have less than they are asked for; waits ask them for one."""
        if received_count < requested_count:
            self._quiet.add(lane)
        else:
            self._quiet.discard(lane)

    async def _await_deliveries(
        self, lane: int, wait_s: float, messages_max: int
    ) -> list[Delivery] | Exception:
        """Wait for the first messages; a failure is told and does not end the group."""
        fetch = self._lanes[lane].fetch_batch(messages_max=messages_max, wait_s=wait_s)
        (outcome,) = await asyncio.gather(fetch, return_exceptions=True)
        if isinstance(outcome, Exception) or not isinstance(outcome, BaseException):
            return outcome
        raise outcome


class SharedIntake:
    """Owns one intake a share: each tenant's that has its own, and one of all others.

    A share with waiting work gets its part of the places that become free, independent of the
    other shares' queues; places that no other share needs go to any share.
    """

    def __init__(self, intakes: Mapping[str, Intake], *, weights: Mapping[str, int]) -> None:
        self._intakes = dict(intakes)
        self._weights = {name: weights.get(name, 1) for name in intakes}
        self._running: Counter[str] = Counter()
        self._turns = 0
        self._capacity_signal = CapacitySignal()

    async def fetch_deliveries(
        self, group: asyncio.TaskGroup, *, free: int, messages_max: int, wait_s: float
    ) -> list[Delivery]:
        """Return at most `free` deliveries, waiting up to `wait_s` for the first; may be none.

        Raises `MessagingUnavailable`.
        """
        more_room = self._capacity_signal.next_ended()
        deliveries = self._take_arrived()
        room = free - len(deliveries) - self._promised_messages
        deliveries += await self._fetch_ready(min(room, messages_max), deliveries=deliveries)
        if deliveries:
            return deliveries
        plenty = sum(intake.plentiful_room for intake in self._intakes.values())
        for intake in self._intakes.values():
            free_places = room - self._promised_messages
            intake.start_waits(group, free_places, wait_s if free >= plenty else LOOK_S)
        await wait_for_any_intake(*self._intakes.values(), more_room=more_room)
        return self._take_arrived()

    def count_started(self, subject: str) -> None:
        """Count a command that runs to its tenant's share."""
        self._running[self._find_share(subject)] += 1

    def count_ended(self, subject: str) -> None:
        """Count a command that runs no more, and look again at what had no room."""
        self._running[self._find_share(subject)] -= 1
        self._capacity_signal.notify_ended()

    async def close(self) -> list[Delivery]:
        """Wait for what was asked for, and return what came."""
        closed = await asyncio.gather(*(intake.close() for intake in self._intakes.values()))
        return [delivery for deliveries in closed for delivery in deliveries]

    @property
    def _promised_messages(self) -> int:
        return sum(intake.promised_messages for intake in self._intakes.values())

    async def _fetch_ready(self, room: int, *, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Give room out again and again until it is taken or nobody has anything waiting."""
        self._turns += 1
        running = self._running + Counter(
            self._find_share(delivery.subject) for delivery in deliveries
        )
        waiting_tenants, ready_deliveries = set(self._intakes), list[Delivery]()
        while waiting_tenants and len(ready_deliveries) < room:
            places_by_lane = allot_places(
                room - len(ready_deliveries),
                waiting=waiting_tenants,
                running=running,
                weights=self._weights,
                first=self._turns,
            )
            for name, places in places_by_lane.items():
                if places:
                    has_some = bool(deliveries or ready_deliveries)
                    lane_deliveries = await self._intakes[name].fetch_ready(
                        places, has_some=has_some
                    )
                    running[name] += len(lane_deliveries)
                    ready_deliveries += lane_deliveries
                    if len(lane_deliveries) < places:
                        waiting_tenants.discard(name)
        return ready_deliveries

    def _take_arrived(self) -> list[Delivery]:
        """Collect what waiting brought; a failure waits until nothing else came."""
        deliveries: list[Delivery] = []
        for intake in self._intakes.values():
            try:
                deliveries += intake.take_arrived()
            except MessagingUnavailable:
                if not deliveries:
                    raise
        return deliveries

    def _find_share(self, subject: str) -> str:
        tenant_id = subjects.parse_command_subject(subject).tenant_id
        return tenant_id if tenant_id in self._intakes else OTHERS


class CapacitySignal:
    """Wakes the intake, which waits for commands, when there is room for more of them."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def notify_ended(self) -> None:
        """Say that a command has ended."""
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    def next_ended(self) -> asyncio.Future[None]:
        """Return what is done as soon as a command has ended after this."""
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_future()
        return self._next


async def wait_for_any_intake(*intakes: Intake, more_room: asyncio.Future[None]) -> None:
    """Wait until one of the waits of several intakes ends.

    Where not all lanes are waited for, no longer than until there is more room, and not for long.
    """
    waits: list[asyncio.Future[Any]] = [wait for intake in intakes for wait in intake.pending_waits]
    if not waits:
        return
    timeout_s = None
    if not all(intake.is_waiting_on_all for intake in intakes):
        waits.append(more_room)
        timeout_s = LOOK_S
    await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
