"""The kernel under a transport and workers that reorder, repeat, delay, lose and are lost."""

import random
from collections import Counter
from typing import Any

from tests.support.planning import ROWS, WORKER, PlannerHarness
from tests.support.shaking_frames import Queue, SlotPlay, frame_answer, reduce_answer
from tests.support.sketches import ATTEMPTS_MAX, LOST, Outcome, Sketch, patch_key, text
from tests.support.slices import gathered, level_gathered

from noetl_contracts.commands.command_work import Command, FrameWork, ItemWork, ReduceWork, SlotWork
from noetl_contracts.commands.waits import MessageWait
from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import Limits
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_replay import snapshot
from noetl_replay.state import CommandState

TURNS_MAX = 5_000
LATE_MAX = 20
PARKINGS_MAX = 2
WAIT_S = 1e7


class HungError(AssertionError):
    """Nothing is on its way any more, and the run has not ended."""


class Shaker:
    """Plays a sketch: who answers first, what comes twice and what never comes is drawn."""

    def __init__(self, sketch: Sketch, chance: random.Random, *, may_hold: bool = True) -> None:
        self.sketch = sketch
        self.chance = chance
        self.may_hold = may_hold
        self.harness = PlannerHarness(text(sketch), limits=Limits(command_lease_s=5.0))
        self.waiting: list[Command | facts.Fact | SlotPlay] = []
        self.queues: dict[str, Queue] = {}
        self.late: list[facts.Fact] = []
        self.losses = Counter[str]()
        self.parkings = Counter[str]()
        self.holds = 0
        self.batches: list[int] = []

    def tell(self, *told: facts.Fact) -> None:
        """Decide, and take what the decision sends."""
        self.harness.tell(*told)
        decision = self.harness.last
        assert decision is not None
        self.batches.append(len(decision.envelopes))
        self.waiting += decision.commands
        for run_id in decision.to_collect:
            run = next(
                (item for item in self.harness.state.runs.values() if item.run_id == run_id), None
            )
            if run is not None and run.loop is not None:
                gather = level_gathered if run.loop.mode == "reduce" else gathered
                self.waiting.append(gather(self.harness, run_id=run_id))

    def play(self) -> PlannerHarness:
        """Run the sketch to its end; raises `HungError` when it has none."""
        self.tell(facts.ExecutionRequested(path="p", workload={}))
        for _ in range(TURNS_MAX):
            if self.harness.state.is_terminal():
                self._come_late()
                return self.harness
            self._turn()
        raise HungError(f"no end after {TURNS_MAX} turns")

    def cancel(self) -> PlannerHarness:
        """Run the sketch for a while, cancel it, and run it to its end."""
        self.tell(facts.ExecutionRequested(path="p", workload={}))
        for _ in range(self.chance.randrange(30)):
            if not self.harness.state.is_terminal():
                self._turn()
        self.tell(facts.CancelRequested())
        for _ in range(TURNS_MAX):
            if self.harness.state.is_terminal():
                self._come_late()
                return self.harness
            if self.waiting:
                self._stop()
                continue
            self.harness.wait(60)
            self.tell(facts.TimerDue())
        raise HungError(f"no end after {TURNS_MAX} turns")

    def _turn(self) -> None:
        chance, harness = self.chance.random(), self.harness
        harness.wait(0.1)
        if chance < 0.04:
            self._forget()
        elif chance < 0.08:
            self.tell(facts.TimerDue(reason=self.chance.choice(["timer", facts.STALLED])))
        elif chance < 0.12 and self.late:
            self.tell(self.chance.choice(self.late))
        elif chance < 0.16 and self.may_hold and harness.state.paused_at is None:
            self.holds += 1
            self.tell(facts.PauseRequested(request_id=f"pause-{self.holds}"))
        elif harness.state.paused_at is not None and (chance > 0.8 or not self.waiting):
            self.tell(facts.ResumeRequested(request_id=f"resume-{self.holds}"))
        elif self._parked() and (chance > 0.9 or not self.waiting):
            self._call()
        elif self.waiting:
            self._deliver()
        else:
            # Whoever waits for an instant is woken; whoever waits for nothing else hangs.
            wake_at = harness.last.wake_at if harness.last is not None else None
            if wake_at is not None:
                harness.now = max(harness.now, wake_at)
            before = harness.state.version
            self.tell(facts.TimerDue(reason=facts.STALLED))
            has_moved = harness.state.version > before or wake_at is not None
            if not self.waiting and not has_moved and not harness.state.is_terminal():
                raise HungError(f"nothing is on its way: {harness.types()[-5:]}")

    def _parked(self) -> list[CommandState]:
        if self.harness.state.paused_at is not None:
            return []
        return [
            command
            for command in self.harness.state.commands.values()
            if command.parked is not None
        ]

    def _call(self) -> None:
        """Send what a parked command waits for."""
        one = self.chance.choice(self._parked())
        assert one.parked is not None
        arrived = facts.MessageArrived(
            command_id=one.command_id,
            key=one.parked.wait.key,
            result=ResultEnvelope(status="ok", context={}),
        )
        self._remember(arrived)
        self.tell(arrived)

    def _may_park(self, command: Command) -> bool:
        if self.parkings[command.command_id] >= PARKINGS_MAX or self.chance.random() > 0.1:
            return False
        self.parkings[command.command_id] += 1
        return True

    def _park(self, command: Command) -> facts.CommandParked:
        """Let a command wait for a message: a person, say, in the middle of its work."""
        key = f"{command.attempt}/{self.parkings[command.command_id]}"
        wait = MessageWait(
            key=key, task="t", mode="signal", address=f"signal/{key}", timeout_s=WAIT_S
        )
        return facts.CommandParked(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=WORKER,
            wait=wait,
            resume_ref=ROWS,
        )

    def _deliver(self) -> None:
        told: list[facts.Fact] = []
        for _ in range(self.chance.choice([1, 1, 1, 2, 3])):
            if self.waiting:
                told += self._take(self.chance.randrange(len(self.waiting)))
        if told:
            self.tell(*told)

    def _take(self, place: int) -> list[facts.Fact]:
        one = self.waiting[place]
        if isinstance(one, SlotPlay):
            return self._play_on(place, one)
        if not isinstance(one, Command):
            self._remember(self.waiting.pop(place))
            return [one]
        if self.chance.random() < 0.2:
            kind = self.chance.choice([facts.CommandStarted, facts.CommandHeartbeat])
            return [kind(command_id=one.command_id, attempt=one.attempt, worker_id=WORKER)]
        del self.waiting[place]
        if self.sketch.node(one.step).is_stuck:
            return []
        if isinstance(one.work, SlotWork):
            node = self.sketch.node(one.step)
            assert node.units is not None
            queue = self.queues.setdefault(one.run_id, Queue(left=list(node.units.outcomes)))
            self.waiting.append(SlotPlay(one, node, queue))
            return []
        outcome = self._outcome(one)
        may_lose = self.losses[one.command_id] < 2 and self.chance.random() < 0.1
        # A shard whose last attempt is lost fails as a whole, whatever its items would give.
        may_lose = may_lose and getattr(one.work, "attempt", 1) < ATTEMPTS_MAX
        if outcome != LOST and self._may_park(one):
            return [self._park(one)]
        if outcome == LOST or may_lose:
            self.losses[one.command_id] += 1
            if outcome != LOST:
                self.late.append(self._answer(one, outcome))
            return [
                facts.CommandLost(
                    command_id=one.command_id, attempt=one.attempt, reason="lease_expired"
                )
            ]
        answer = self._answer(one, outcome)
        self._remember(answer)
        return [answer]

    def _play_on(self, place: int, slot: SlotPlay) -> list[facts.Fact]:
        """Let a slot report one thing more, or lose it with what it was about to say."""
        command = slot.command
        if self.losses[command.command_id] < 2 and self.chance.random() < 0.1:
            self.losses[command.command_id] += 1
            del self.waiting[place]
            if self.chance.random() < 0.5:
                self.late.append(slot.next())
            return [
                facts.CommandLost(
                    command_id=command.command_id, attempt=command.attempt, reason="lease_expired"
                )
            ]
        if slot.is_open and self._may_park(command):
            del self.waiting[place]
            return [self._park(command)]
        fact = slot.next()
        self._remember(fact)
        if slot.is_over:
            del self.waiting[place]
        return [fact]

    def _stop(self) -> None:
        one = self.waiting.pop(self.chance.randrange(len(self.waiting)))
        if isinstance(one, SlotPlay):
            one = one.command
        match self.chance.randrange(4):
            case 0:
                return
            case _ if isinstance(one, Command) and isinstance(one.work, SlotWork):
                # A slot that is called off says so, or nothing.
                self.tell(
                    facts.CommandStopped(
                        command_id=one.command_id, attempt=one.attempt, worker_id=WORKER
                    )
                )
            case 1 if isinstance(one, Command):
                stopped = facts.CommandStopped(
                    command_id=one.command_id, attempt=one.attempt, worker_id=WORKER
                )
                self.tell(stopped)
            case 2 if isinstance(one, Command):
                self.tell(
                    facts.CommandLost(
                        command_id=one.command_id, attempt=one.attempt, reason="lease_expired"
                    )
                )
            case _:
                self.tell(
                    self._answer(one, self._outcome(one)) if isinstance(one, Command) else one
                )

    def _remember(self, fact: Any) -> None:
        if self.chance.random() < 0.3 and len(self.late) < LATE_MAX:
            self.late.append(fact)

    def _come_late(self) -> None:
        """Tell an execution that has ended what was still on its way: nothing may change."""
        version = self.harness.state.version
        left = [item for item in self.waiting if not isinstance(item, Command | SlotPlay)]
        self.tell(*self.late, *left, facts.TimerDue())
        assert self.harness.state.version == version

    def _forget(self) -> None:
        """Go on as a planner does that starts anew from a snapshot."""
        restored = snapshot.restore_state(snapshot.build_snapshot(self.harness.state))
        assert restored is not None
        self.harness.state = restored

    def _outcome(self, command: Command) -> Outcome:
        node = self.sketch.node(command.step)
        if node.units is None:
            return node.outcome
        if isinstance(command.work, FrameWork):
            return 0
        return node.units.outcomes[_index(command)]

    def _answer(self, command: Command, outcome: Outcome) -> facts.Fact:
        node = self.sketch.node(command.step)
        if isinstance(command.work, FrameWork):
            return frame_answer(command, node, self.chance)
        if isinstance(command.work, ReduceWork):
            return reduce_answer(command, node)
        key = patch_key(node).removeprefix("ctx.")
        patch = {key: _index(command)} if node.patch else {}
        if isinstance(outcome, str):
            error = ErrorObject(kind=outcome, message="as planned", step=command.step)
            return facts.CommandFailed(
                command_id=command.command_id,
                attempt=command.attempt,
                worker_id=WORKER,
                error=error,
                patch=patch,
            )
        pipeline_result = PipelineResult(
            tasks={"t": TaskResult(kind="python", raw={"n": outcome})}, last="t"
        )
        return facts.CommandCompleted(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=WORKER,
            result=ResultEnvelope(
                status="ok", context=result_envelope.build_inline_context(pipeline_result)
            ),
            patch=patch,
        )


def _index(command: Command) -> int:
    return command.work.index if isinstance(command.work, ItemWork) else 0
