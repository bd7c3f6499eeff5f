"""Whatever the transport does to facts, the same end is reached and each effect counts once."""

import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.planning import PlannerHarness, closed, done, dry, opened

from noetl_contracts.commands.command_work import Command, SlotWork, StepWork
from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import Limits

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - {step: before, tool: {kind: noop}, next: {arcs: [{step: drain}]}}
  - step: drain
    loop:
      cursor: {kind: postgres, auth: db, claim: "SELECT 1"}
      iterator: row
      spec:
        mode: cursor
        max_in_flight: 3
        policy: {failure: {mode: drain}}
        frame: {max_rows: 5, max_attempts: 1000}
    tool: {kind: noop}
    next: {arcs: [{step: after, on: loop.done}]}
  - {step: after, tool: {kind: noop}}
"""
WINDOWS = 7
TURNS_MAX = 3_000


class Source:
    """A queue table: a window claimed under a frame id is that frame's for good."""

    def __init__(self) -> None:
        self.owned: dict[str, int] = {}
        # By frame, the attempts that ran it, as its record and takeovers show.
        self.fences: dict[str, set[int]] = {}

    def claim(self, frame_id: str) -> int | None:
        if frame_id not in self.owned and len(self.owned) < WINDOWS:
            self.owned[frame_id] = len(self.owned) + 1
        return self.owned.get(frame_id)


class Transport:
    """Holds facts back, hands them over in any order, twice, or never."""

    def __init__(self, harness: PlannerHarness, chance: random.Random) -> None:
        self.harness = harness
        self.chance = chance
        self.waiting: list[tuple[Command, tuple[facts.Fact, ...]]] = []
        self.source = Source()
        self.taken: set[tuple[str, int]] = set()

    def work(self) -> None:
        """Let a worker execute every command that nobody has taken."""
        for command in list(self.harness.commands.values()):
            key = (command.command_id, command.attempt)
            if key not in self.taken:
                self.taken.add(key)
                self._execute(command)

    def _execute(self, command: Command) -> None:
        if isinstance(command.work, StepWork):
            self.waiting.append((command, (done(command, {}),)))
            return
        assert isinstance(command.work, SlotWork)
        index, ended = command.work.next_index, None
        while True:
            fact = self._open(command, index)
            if fact is None:
                last = dry(command, frames=0, next_index=index)
                self.waiting.append((command, (ended, last) if ended else (last,)))
                return
            self.waiting.append((command, (ended, fact) if ended else (fact,)))
            ended = closed(command, index, rows=self.source.owned[fact.frame_id])
            index += 1

    def _open(self, command: Command, index: int) -> facts.FrameOpened | None:
        fact = opened(command, index)
        rows = self.source.claim(fact.frame_id)
        if rows is None:
            return None
        work: Any = command.work
        handed = work.open_frame is not None and work.open_frame.frame_id == fact.frame_id
        told = work.open_frame.dispatches if handed else 0
        fences = self.source.fences.setdefault(fact.frame_id, set())
        before = len(fences) - told
        fences.add(command.attempt)
        return opened(command, index, rows=rows, attempts_before=before)

    def step(self) -> None:
        """Do one thing to one waiting message."""
        place = self.chance.randrange(min(len(self.waiting), 4))
        fate = self.chance.random()
        if fate < 0.1:
            self.waiting.pop(place)
            return
        command, batch = self.waiting[place]
        if fate > 0.2:
            self.waiting.pop(place)
        del command
        self.harness.tell(*batch)

    def lose_idle(self) -> None:
        """Nothing is on its way any more: whatever is still open has been lost."""
        for command in list(self.harness.state.commands.values()):
            self.harness.tell(
                facts.CommandLost(
                    command_id=command.command_id, attempt=command.attempt, reason="lease_expired"
                )
            )


@settings(max_examples=300)
@given(st.integers(min_value=0, max_value=2**32))
def test_any_order_duplicate_or_loss_ends_in_the_same_place(seed: int) -> None:
    # How often something may be lost is another test's subject.
    harness = PlannerHarness(PLAYBOOK, limits=Limits(step_attempts_max=1000))
    harness.start()
    transport = Transport(harness, random.Random(seed))
    for _ in range(TURNS_MAX):
        if harness.state.is_terminal():
            break
        transport.work()
        harness.wait(0.3)
        if transport.waiting:
            transport.step()
        else:
            transport.lose_idle()
            harness.tell(facts.TimerDue())
    types = harness.types()
    assert types[-1] == "playbook.completed", (seed, types[-5:])
    assert types.count("stage.closed") == 1
    assert types.count("loop.done") == 1
    committed = [event.frame_id for event in harness.events("frame.committed")]
    assert sorted(committed) == sorted(transport.source.owned), seed
    assert _dispatches(harness) == _runs_until_committed(harness, transport.source), seed
    assert sum(event.row_count for event in harness.events("frame.committed")) == sum(
        range(1, WINDOWS + 1)
    )
    assert [event.step for event in harness.events("step.enter")] == ["before", "drain", "after"]


def _dispatches(harness: PlannerHarness) -> Counter[str]:
    return Counter(event.frame_id for event in harness.events("frame.dispatched"))


def _runs_until_committed(harness: PlannerHarness, source: Source) -> Counter[str]:
    """Count who ran each frame, up to the attempt that was believed: no try leaves no trace."""
    fence_by_frame = {event.frame_id: event.fence for event in harness.events("frame.dispatched")}
    return Counter(
        {
            frame_id: sum(fence <= fence_by_frame[frame_id] for fence in fences)
            for frame_id, fences in source.fences.items()
        }
    )
