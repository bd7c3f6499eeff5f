"""Chunks, shards and a tree under any order, repetition or loss of facts: each row once."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.planning import Desk, done
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

    def __init__(self, desk: Desk, chance: random.Random) -> None:
        self.desk = desk
        self.chance = chance
        self.waiting: list[facts.Fact] = []
        self.taken: set[tuple[str, int]] = set()

    def work(self) -> None:
        """Let a worker execute every command that nobody has taken."""
        for command in list(self.desk.commands.values()):
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
        desk = self.desk
        if desk.last is not None and desk.last.to_collect:
            self._gather()
        elif self.waiting:
            place = self.chance.randrange(min(len(self.waiting), 4))
            fate = self.chance.random()
            fact = self.waiting[place] if 0.1 < fate < 0.2 else self.waiting.pop(place)
            if fate >= 0.1:
                desk.tell(fact)
        else:
            desk.wait(3_600)
            live = list(desk.state.commands)
            desk.tell(facts.TimerDue(), *(lost(desk.commands[one]) for one in live))

    def _gather(self) -> None:
        assert self.desk.last is not None
        (run_id,) = self.desk.last.to_collect
        run = next(one for one in self.desk.state.runs.values() if one.run_id == run_id)
        assert run.loop is not None
        is_level = run.loop.mode == "reduce"
        told = level_gathered(self.desk) if is_level else gathered(self.desk)
        self.desk.tell(told, *([told] if self.chance.random() < 0.5 else []))


@settings(max_examples=150)
@given(st.integers(min_value=0, max_value=2**32))
def test_frames_end_in_the_same_place_whatever_becomes_of_their_facts(seed: int) -> None:
    desk = Desk(PLAYBOOK, limits=Limits(step_attempts_max=1_000))
    desk.start()
    shaken = Shaken(desk, random.Random(seed))
    for _ in range(TURNS_MAX):
        if desk.state.is_terminal():
            break
        shaken.step()
    assert desk.types()[-1] == "playbook.completed"
    chunks, shards = desk.events("loop.done")
    assert (chunks.stats.total, chunks.stats.success) == (11, 11)
    assert (shards.stats.total, shards.stats.success) == (7, 7)
    counted = Counter(desk.types())
    assert counted["stage.closed"] == 3
    assert counted["loop.shard.done"] == 7
    assert counted["reduce.level_opened"] == 2
    rows = Counter[int]()
    starts = {one.frame_id: one.start for one in desk.events("frame.dispatched")}
    for event in desk.events("frame.committed"):
        if event.stage_id == chunks.stage_id:
            start = starts[event.frame_id]
            rows.update(range(start, start + event.row_count))
    assert rows == Counter(range(11))
    keys = [one.idempotency_key for one in desk.history if one.idempotency_key is not None]
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
    desk = Desk(RACED.replace("MODE", mode))
    desk.start()
    commands = desk.sent()
    desk.tell(*(frame_done(command) for command in commands[:-2]))
    told: list[facts.Fact] = []
    for command in commands[-2:]:
        # A commit, its repetitions, a report of the loss, and what the next attempt commits.
        told += [frame_done(command)] * chance.randint(1, 3)
        told += [lost(command)] * chance.randint(0, 1)
    chance.shuffle(told)
    while told or not desk.state.is_terminal():
        batch = [told.pop() for _ in range(min(len(told), chance.randint(1, 3)))]
        desk.tell(*batch)
        assert desk.last is not None
        if desk.last.to_collect:
            told += [gathered(desk)] * chance.randint(1, 2)
        told += [frame_done(command) for command in desk.sent()]
        if not told and not desk.state.is_terminal():
            desk.wait(5)
            desk.tell(facts.TimerDue())
            told += [frame_done(command) for command in desk.sent()]
    types = desk.types()
    assert types.count("stage.closed") == types.count("loop.done") == 1
    assert types.count("frame.committed") == 6
    assert types[-1] == "playbook.completed"
