"""An execution whose events the ledger refuses ends with a named error; the others go on."""

from datetime import UTC, datetime

import pytest
from tests.support import planning

from noetl_contracts.errors import ErrorObject
from noetl_contracts.requests import facts
from noetl_planner.domain.decide import decide
from noetl_planner.domain.decision.draft import DecisionDraft, DecisionInputs, Limits

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - {step: one, tool: {kind: noop}, next: {arcs: [{step: two}]}}
  - {step: two, tool: {kind: noop}}
"""


@pytest.mark.parametrize("told", [(), (facts.TimerDue(),)])
def test_a_refused_execution_fails_and_calls_off_what_is_in_flight(
    told: tuple[facts.Fact, ...],
) -> None:
    harness = planning.PlannerHarness(PLAYBOOK)
    harness.start()
    draft = DecisionDraft(
        state=harness.state,
        program=harness.program,
        stamp=DecisionInputs(
            now=datetime(2026, 1, 1, tzinfo=UTC), producer="t", next_event_id=harness._mint
        ),
        limits=Limits(),
        loaded={},
    )
    error = ErrorObject(kind="payload_too_large", message="too long", step="(ledger)")
    decision = decide(draft, told, refused=error)
    kinds = [str(envelope.event.__struct_config__.tag) for envelope in decision.envelopes]
    assert kinds == ["command.cancelled", "step.exit", "playbook.failed"]
    assert draft.state.failure == error
