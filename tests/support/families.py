"""Executions that start each other: a desk for each, and what they tell one another."""

from itertools import count

from tests.support.planning import ROWS, WORKER, PlannerHarness, done

from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.waits import ChildWait
from noetl_contracts.ids import ExecutionId
from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import Limits

PARENT = ExecutionId("1000")


class Family:
    """A parent and whatever its commands ask for; `post` holds what is on its way."""

    def __init__(self, *, limits: Limits | None = None, **playbooks: str) -> None:
        self.limits = limits
        self.playbooks = playbooks
        self.desks: dict[ExecutionId, PlannerHarness] = {}
        self.post: list[facts.FactBatch] = []
        self._minted = count(2000)
        self.parent = self._desk(PARENT, "parent")

    def start(self, **workload: object) -> None:
        """Request the parent."""
        self.tell(self.parent, facts.ExecutionRequested(path="parent", workload=dict(workload)))

    def tell(self, harness: PlannerHarness, *told: facts.Fact) -> None:
        """Decide, and take what the decision tells others."""
        harness.tell(*told)
        assert harness.last is not None
        self.post += harness.last.sent_facts

    def deliver(self, batch: facts.FactBatch) -> None:
        """Hand a message to the execution that it is for."""
        harness = self.desks.get(batch.execution_id)
        if harness is None:
            (asked,) = batch.facts
            if not isinstance(asked, facts.ExecutionRequested):
                return
            harness = self._desk(batch.execution_id, asked.path)
        self.tell(harness, *batch.facts)

    def deliver_all(self) -> None:
        """Hand over what is on its way until nothing is."""
        while self.post:
            self.deliver(self.post.pop(0))

    def children(self) -> list[PlannerHarness]:
        """Return every execution but the parent."""
        return [harness for harness in self.desks.values() if harness is not self.parent]

    def _desk(self, execution_id: ExecutionId, path: str) -> PlannerHarness:
        harness = PlannerHarness(
            self.playbooks[path],
            limits=self.limits,
            execution_id=execution_id,
            minted=self._minted,
        )
        for other in self.desks.values():
            harness.now = max(harness.now, other.now)
        self.desks[execution_id] = harness
        return harness


def parks(command: Command, *, visit: int = 1, attempt: int = 1, **fields: object) -> facts.Fact:
    """Report that a command waits for a child, or that it is done once the child has answered."""
    if command.resume is not None:
        return done(command, {"status": command.resume.status})
    wait = ChildWait(
        **{
            "key": f"ask/{visit}/{attempt}",
            "task": "ask",
            "path": "child",
            "timeout_s": 3600.0,
            **fields,
        }  # type: ignore[arg-type]  # a test names whatever it is about
    )
    return facts.CommandParked(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=WORKER,
        resume_ref=ROWS,
        wait=wait,
    )
