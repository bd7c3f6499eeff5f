"""Chunks, shards and a tree under any order, repetition or loss of facts: each row once."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.planning import PlannerHarness, done
from tests.support.slices import frame_done, frame_failed, gathered, level_gathered, lost

from noetl_contracts.commands.command_work import Command, FrameWork, ReduceWork, StepWork
from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import Limits

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: chunks
    loop: {in: "{{ 11 }}", iterator: it,
           spec: {mode: chunked, chunk_size: 3, max_in_flight: 2, frame: {max_attempts: 1000}}}
    tool: {kind: noop}
    next: {arcs: [{step: shards}]}
  - step: shards
    loop: {in: "{{ 7 }}", iterator: it,
           spec: {mode: fanout, max_in_flight: 3, fanout: {max_shard_retries: 999}}}
    tool: {kind: noop}
    next: {arcs: [{step: total}]}
  - step: total
    reduce: {from: shards, spec: {mode: tree, fan_in: 3, frame: {max_attempts: 1000}}}
    tool: {kind: noop}
    next: {arcs: [{step: after}]}
  - {step: after, tool: {kind: noop}}
"""
TURNS_MAX = 5_000


class Shaken:
    """Executes commands and hands their facts over late, twice, or never."""

    def __init__(self, harness: PlannerHarness, chance: random.Random) -> None:
        self.harness = harness
        self.chance = chance
        self.waiting: list[facts.Fact] = []
        self.taken: set[tuple[str, int]] = set()

    def work(self) -> None:
        """Let a worker execute every command that nobody has taken."""
        for command in list(self.harness.commands.values()):
            key = (command.command_id, command.attempt)
            if key not in self.taken:
                self.taken.add(key)
                self.waiting.append(self._executed(command))

    def _executed(self, command: Command) -> facts.Fact:
        work = command.work
        if isinstance(work, StepWork):
            return done(command)
        assert isinstance(work, FrameWork | ReduceWork)
        if isinstance(work, FrameWork) and work.is_shard and self.chance.random() < 0.3:
            return frame_failed(command)
        count = work.end - work.start
        if isinstance(work, FrameWork) and not work.is_shard and count > 1:
            ran = self.chance.randint(1, count)
            return frame_done(command, row_count=ran, rows_left=count - ran)
        return frame_done(command)

    def step(self) -> None:
        """Do one thing: a fact, the shell's gathering, a loss, or the passing of time."""
        self.work()
        harness = self.harness
        if harness.last is not None and harness.last.to_collect:
            self._gather()
        elif self.waiting:
            place = self.chance.randrange(min(len(self.waiting), 4))
            fate = self.chance.random()
            fact = self.waiting[place] if 0.1 < fate < 0.2 else self.waiting.pop(place)
            if fate >= 0.1:
                harness.tell(fact)
        else:
            harness.wait(3_600)
            commands = list(harness.state.commands)
            harness.tell(
                facts.TimerDue(), *(lost(harness.commands[command]) for command in commands)
            )

    def _gather(self) -> None:
        assert self.harness.last is not None
        (run_id,) = self.harness.last.to_collect
        run = next(item for item in self.harness.state.runs.values() if item.run_id == run_id)
        assert run.loop is not None
        is_level = run.loop.mode == "reduce"
        told = level_gathered(self.harness) if is_level else gathered(self.harness)
        self.harness.tell(told, *([told] if self.chance.random() < 0.5 else []))


@settings(max_examples=150)
@given(st.integers(min_value=0, max_value=2**32))
def test_frames_end_in_the_same_place_whatever_becomes_of_their_facts(seed: int) -> None:
    harness = PlannerHarness(PLAYBOOK, limits=Limits(step_attempts_max=1_000))
    harness.start()
    shaken = Shaken(harness, random.Random(seed))
    for _ in range(TURNS_MAX):
        if harness.state.is_terminal():
            break
        shaken.step()
    assert harness.types()[-1] == "playbook.completed"
    chunks, shards = harness.events("loop.done")
    assert (chunks.stats.total, chunks.stats.success) == (11, 11)
    assert (shards.stats.total, shards.stats.success) == (7, 7)
    counted = Counter(harness.types())
    assert counted["stage.closed"] == 3
    assert counted["loop.shard.done"] == 7
    assert counted["reduce.level_opened"] == 2
    rows = Counter[int]()
    starts = {item.frame_id: item.start for item in harness.events("frame.dispatched")}
    for event in harness.events("frame.committed"):
        if event.stage_id == chunks.stage_id:
            start = starts[event.frame_id]
            rows.update(range(start, start + event.row_count))
    assert rows == Counter(range(11))
    keys = [item.idempotency_key for item in harness.history if item.idempotency_key is not None]
    assert len(keys) == len(set(keys))


RACED = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: each
    loop: {in: "{{ 6 }}", iterator: it, spec: {mode: MODE, max_in_flight: 6}}
    tool: {kind: noop}
"""


@settings(max_examples=1_000)
@given(st.sampled_from(["chunked, chunk_size: 1", "fanout"]), st.integers(0, 2**32))
def test_a_stage_closes_once_however_its_last_two_frames_race(mode: str, seed: int) -> None:
    chance = random.Random(seed)
    harness = PlannerHarness(RACED.replace("MODE", mode))
    harness.start()
    commands = harness.sent()
    harness.tell(*(frame_done(command) for command in commands[:-2]))
    told: list[facts.Fact] = []
    for command in commands[-2:]:
        # A commit, its repetitions, a report of the loss, and what the next attempt commits.
        told += [frame_done(command)] * chance.randint(1, 3)
        told += [lost(command)] * chance.randint(0, 1)
    chance.shuffle(told)
    while told or not harness.state.is_terminal():
        batch = [told.pop() for _ in range(min(len(told), chance.randint(1, 3)))]
        harness.tell(*batch)
        assert harness.last is not None
        if harness.last.to_collect:
            told += [gathered(harness)] * chance.randint(1, 2)
        told += [frame_done(command) for command in harness.sent()]
        if not told and not harness.state.is_terminal():
            harness.wait(5)
            harness.tell(facts.TimerDue())
            told += [frame_done(command) for command in harness.sent()]
    types = harness.types()
    assert types.count("stage.closed") == types.count("loop.done") == 1
    assert types.count("frame.committed") == 6
    assert types[-1] == "playbook.completed"
