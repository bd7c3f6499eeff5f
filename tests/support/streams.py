"""Streams as a planner without a shell sees them: chunks reported, results gathered."""

from typing import Any

from tests.support.planning import ROWS, WORKER, PlannerHarness

from noetl_contracts.commands.command_work import Command, StepWork
from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests import facts
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import LoopResult

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: p}}
workflow:
  - step: export
    {spec}
    tool: {{kind: python, code: "yield 1", stream: {{chunk_rows: 2}}}}
    next:
      spec: {{mode: {mode}}}
      arcs:
        - {{step: ship, on: call.partial{arc}}}
        - {{step: wrap_up, on: call.done, set: {{ctx.chunks: "{{{{ event.chunks }}}}"}}}}
        - {{step: repair, on: call.error, set: {{ctx.error: "{{{{ event.error.kind }}}}"}}}}
  - step: ship
    tool: {{kind: noop}}
    {target}
  - {{step: wrap_up, tool: {{kind: noop}}, next: {{arcs: [{{step: end}}]}}}}
  - {{step: repair, tool: {{kind: noop}}}}
  - {{step: end, tool: {{kind: noop}}}}
"""


def playbook(
    *, in_flight: int = 2, arc: str = "", spec: str = "", target: str = "", mode: str = "exclusive"
) -> str:
    written = f", spec: {{max_in_flight: {in_flight}}}" + arc
    return PLAYBOOK.format(arc=written, spec=spec, target=target, mode=mode)


def chunk(command: Command, index: int, *, more: bool = True) -> facts.ChunkEmitted:
    """Report that a chunk is stored."""
    return facts.ChunkEmitted(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=WORKER,
        index=index,
        row_count=2,
        ref=PayloadRef(
            uri=ROWS.uri[:-64] + f"{index:064d}",
            sha256=f"{index:064d}",
            media_type="application/json",
            payload_bytes=5,
            row_count=2,
        ),
        has_more=more,
    )


def failed(command: Command, kind: str = "transform") -> facts.CommandFailed:
    """Report that a command failed."""
    return facts.CommandFailed(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=WORKER,
        error=ErrorObject(kind=kind, code="X", message=f"broken {command.step}"),
    )


def begun(text: str) -> tuple[PlannerHarness, Command]:
    """Start a playbook whose first step streams; return its command, too."""
    harness = PlannerHarness(text)
    harness.start()
    (producer,) = harness.sent()
    assert producer.work == StepWork()
    return harness, producer


def gather(harness: PlannerHarness, results: list[Any] | None = None) -> None:
    """Do what the shell does: hand in the results of every target that has ended."""
    assert harness.last is not None
    loop_result = LoopResult(results=results or [], stats={})
    envelope = ResultEnvelope(
        status="ok", context=result_envelope.build_inline_context(loop_result)
    )
    for run_id in harness.last.to_collect:
        harness.tell(facts.ItemsCollected(run_id=run_id, result=envelope))
