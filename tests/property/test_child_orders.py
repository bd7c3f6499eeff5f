"""Whatever the transport does between parents, children and workers, each child starts once."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.families import Family, parks
from tests.support.planning import PlannerHarness, done

from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import Limits

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n"
PARENT = HEAD + (
    "  - step: each\n"
    "    loop: {in: [1, 2, 3, 4, 5], iterator: n,\n"
    "           spec: {mode: parallel, max_in_flight: 2, max_attempts: 1000, collect: none}}\n"
    "    tool: {kind: playbook, path: child}\n"
)
CHILD = HEAD + "  - {step: only, tool: {kind: noop}}\n"
ITEMS = 5
TURNS_MAX = 5_000


class Weather:
    """Delivers messages late, twice, out of order or never; lets workers die."""

    def __init__(self, family: Family, chance: random.Random) -> None:
        self.family = family
        self.chance = chance
        self.reports: list[tuple[PlannerHarness, facts.Fact]] = []
        self.taken: set[tuple[str, str, int]] = set()

    def work(self) -> None:
        """Let a worker take every command that nobody has taken."""
        for harness in list(self.family.desks.values()):
            for command in list(harness.commands.values()):
                key = (harness.state.execution_id, command.command_id, command.attempt)
                if key in self.taken:
                    continue
                self.taken.add(key)
                is_parent = harness is self.family.parent
                self.reports.append((harness, parks(command) if is_parent else done(command)))

    def step(self) -> None:
        """Do one thing to one message that is on its way."""
        waiting: list[object] = [*self.reports, *self.family.post]
        place = self.chance.randrange(len(waiting))
        fate = self.chance.random()
        if place < len(self.reports):
            harness, fact = self.reports[place]
            if fate < 0.85:
                self.reports.pop(place)
            if fate > 0.1:
                self.family.tell(harness, fact)
            return
        batch = self.family.post[place - len(self.reports)]
        if fate < 0.85:
            self.family.post.remove(batch)
        if fate > 0.1:
            self.family.deliver(batch)

    def after_a_silence(self) -> None:
        """Nothing is on its way: leases end, and the reaper nudges."""
        for harness in list(self.family.desks.values()):
            for command in list(harness.state.commands.values()):
                self.family.tell(
                    harness,
                    facts.CommandLost(
                        command_id=command.command_id,
                        attempt=command.attempt,
                        reason="lease_expired",
                    ),
                )
            self.family.tell(harness, facts.TimerDue(reason=facts.STALLED))


@settings(max_examples=150)
@given(st.integers(min_value=0, max_value=2**32))
def test_every_item_starts_one_child_and_is_resumed_once(seed: int) -> None:
    family = Family(parent=PARENT, child=CHILD, limits=Limits(step_attempts_max=1000))
    weather = Weather(family, random.Random(seed))
    family.start()
    for _ in range(TURNS_MAX):
        if len(family.parent.events("call.done")) == ITEMS:
            break
        weather.work()
        if weather.reports or family.post:
            weather.step()
        else:
            weather.after_a_silence()
    assert len(family.parent.events("call.done")) == ITEMS, seed
    started = family.parent.events("child.started")
    assert len(started) == len(family.children()) == ITEMS, seed
    assert len(family.parent.events("child.ended")) == ITEMS, seed
    assert len(family.parent.events("command.resumed")) == ITEMS, seed
    assert len({event.command_id for event in family.parent.events("command.resumed")}) == ITEMS
    for child in family.children():
        assert child.types().count("playbook.initialized") == 1
        assert child.types()[-1] == "playbook.completed"
    keys = [item.idempotency_key for item in family.parent.history if item.idempotency_key]
    assert len(keys) == len(set(keys)), seed
