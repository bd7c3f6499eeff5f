"""Which pool and lane a command goes to, and what is refused at the start."""

import pytest
from tests.support.planning import PlannerHarness

from noetl_contracts.commands.worker_pools import Pools, Priority, build_lane_name
from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import Limits
from noetl_playbook.parse.playbook import parse_playbook

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: p}}
executor: {{spec: {executor}}}
workflow:
"""
TWO = """
  - step: here
    spec: {spec}
    tool: {{kind: noop}}
"""


def harness(
    *, executor: str = "{}", spec: str = "{}", pools: Pools | None = None
) -> PlannerHarness:
    text = HEAD.format(executor=executor) + TWO.format(spec=spec)
    return PlannerHarness(text, limits=Limits(pools=pools or Pools()))


def place(
    planner_harness: PlannerHarness, pool: str | None = None, priority: Priority | None = None
) -> str:
    """Start, and return the subject's middle: pool and lane."""
    planner_harness.tell(facts.ExecutionRequested(path="p", pool=pool, priority=priority))
    (command,) = planner_harness.sent()
    return f"{command.pool}.{command.lane}"


def test_a_command_goes_to_the_default_pool_unless_somebody_says_otherwise() -> None:
    assert place(harness()) == "default.io"


def test_the_playbook_names_a_pool_and_a_priority_for_all_steps() -> None:
    assert place(harness(executor="{pool: gpu, priority: low}")) == "gpu.io-low"


def test_the_request_counts_more_than_the_playbook() -> None:
    asked = harness(executor="{pool: gpu, priority: low}")
    assert place(asked, "edge", Priority.HIGH) == "edge.io-high"


def test_the_step_counts_more_than_the_request() -> None:
    asked = harness(executor="{pool: gpu}", spec="{pool: big, priority: normal}")
    assert place(asked, "edge", Priority.HIGH) == "big.io"


def test_what_the_request_said_survives_a_replay() -> None:
    asked = harness()
    place(asked, "edge", Priority.HIGH)
    again = harness()
    again.replay(asked.history)
    assert (again.state.pool, again.state.priority) == ("edge", Priority.HIGH)


def test_a_lost_command_is_sent_again_to_the_same_place() -> None:
    asked = harness(spec="{pool: gpu, priority: high}")
    place(asked)
    (command,) = asked.sent()
    asked.tell(facts.CommandLost(command_id=command.command_id, attempt=1, reason="test"))
    (again,) = asked.sent()
    assert (again.pool, again.lane, again.attempt) == ("gpu", "io-high", 2)


def test_a_pool_that_is_not_here_fails_the_execution_at_its_start() -> None:
    asked = harness(spec="{pool: gqu}", pools=Pools(by_stream=("default", "gpu")))
    asked.start()
    assert asked.sent() == []
    (failed,) = asked.events("playbook.failed")
    assert failed.error.kind == "requirement_missing"
    assert "step 'here'" in failed.error.message
    assert "did you mean 'gpu'" in failed.error.message


CURSOR = """loop: {cursor: {kind: postgres, auth: pg, claim: "select 1"}, iterator: row,
           spec: {mode: cursor, max_in_flight: 1}}
    tool: {kind: noop}"""


@pytest.mark.parametrize(
    ("body", "reason", "way_out"),
    [
        (CURSOR, "slots of a cursor loop", "loop over them in mode chunked"),
        ("tool: {kind: playbook, path: other}", "kind 'playbook'", "(spec.pool)"),
        (
            "tool: {kind: external, mode: callback, submit: {kind: noop}}",
            "kind 'external'",
            "(spec.pool)",
        ),
        ("tool: {kind: python, code: 'result = []', stream: {}}", "streams", "leave out 'stream'"),
    ],
)
def test_what_the_claim_api_has_no_words_for_needs_jetstream(
    body: str, reason: str, way_out: str
) -> None:
    pools = Pools(by_stream=("default",), by_http=("edge",))
    text = f"{HEAD.format(executor='{}')}  - step: here\n    spec: {{pool: edge}}\n    {body}\n"
    planner_harness = PlannerHarness(text, limits=Limits(pools=pools))
    planner_harness.start()
    (failed,) = planner_harness.events("playbook.failed")
    assert "served over HTTP" in failed.error.message
    assert reason in failed.error.message
    assert way_out in failed.error.message


def test_commands_of_pools_over_http_are_not_sent() -> None:
    pools = Pools(by_stream=("default",), by_http=("edge",))
    asked = harness(spec="{pool: edge}", pools=pools)
    assert "command.issued" in asked.start()
    assert asked.sent() == []


@pytest.mark.parametrize("name", ["a.b", "*", "", "-x", "x" * 33, "a b"])
def test_what_cannot_stand_in_a_subject_is_no_pool(name: str) -> None:
    parsed = parse_playbook(HEAD.format(executor="{}") + TWO.format(spec=f"{{pool: '{name}'}}"))
    assert [problem.code for problem in parsed.problems] == ["E104"]


def test_a_priority_is_one_of_three() -> None:
    parsed = parse_playbook(HEAD.format(executor="{priority: urgent}") + TWO.format(spec="{}"))
    assert [problem.code for problem in parsed.problems] == ["E104"]


def test_the_normal_lane_has_the_plain_name() -> None:
    assert [build_lane_name("io", item) for item in Priority] == ["io-high", "io", "io-low"]
