"""Random playbooks under random transports: the same end, each effect once, and never a hang."""

import random
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import invariants, oracle
from tests.support.oracle import Expected
from tests.support.planning import PlannerHarness
from tests.support.shaking import Shaker
from tests.support.sketches import FRAMED, Sketch, text
from tests.support.sketching import acyclic, cyclic

from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.status import RunStatus
from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.source.problems import Level
from noetl_replay.state import ExecutionState

ROUGH = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
SEEDS = st.integers(0, 2**32)
CUTS = st.lists(st.integers(0, 10_000), min_size=2, max_size=2)
STRUCTURAL = {"internal", "unknown", "template", "validation", "config"}


def bounded(examples: int) -> settings:
    """Bound a property; a profile may ask for more."""
    max_examples = settings().max_examples
    most = (
        examples if max_examples == settings.get_profile("default").max_examples else max_examples
    )
    return settings(max_examples=most, suppress_health_check=ROUGH)


def assert_expected(
    sketch: Sketch, expected: Expected, state: ExecutionState, history: Sequence[Envelope]
) -> None:
    """Compare how a run went with what the oracle says."""
    assert str(state.status) == expected.status
    ran = invariants.activations(history)
    assert all(many == 1 for many in ran.values()), ran
    assert ran.keys() <= expected.steps.keys()
    for name in ran:
        status = state.steps[name].status
        # Draining lets the work of other branches finish.
        is_cut = status is RunStatus.CANCELLED and bool(expected.failures)
        is_cut = is_cut and sketch.failure == "fail_fast"
        assert is_cut or str(status) == expected.steps[name].status, name
    if expected.failures:
        assert state.failure is not None
        assert (state.failed_step, state.failure.kind) in expected.failures
        return
    assert ran.keys() == expected.steps.keys()
    assert_counts(sketch, expected, history)
    left_out = expected.unordered
    assert {key: value for key, value in state.ctx.items() if key not in left_out} == {
        key: value for key, value in expected.ctx.items() if key not in left_out
    }


def assert_counts(sketch: Sketch, expected: Expected, history: Sequence[Envelope]) -> None:
    """Compare how many items of each loop succeeded and failed."""
    found = invariants.units(history)
    for node in sketch.nodes:
        ended = expected.steps.get(node.name)
        if ended is None or node.units is None or not node.units.is_sure():
            continue
        counted = (found[node.name, "call.done"], found[node.name, "call.error"])
        if node.units.local or node.units.mode in FRAMED:
            counted = invariants.counted(history, node.name)
        assert counted == (ended.success, ended.failed), node.name


def assert_no_defect(harness: PlannerHarness) -> None:
    """A playbook that lint finds clean does not fail for the engine's reasons."""
    failure = harness.state.failure
    assert failure is None or failure.kind not in STRUCTURAL, failure


@bounded(150)
@given(acyclic(), SEEDS, CUTS, st.integers(1, 9))
def test_a_workflow_comes_to_what_the_language_says_in_every_order(
    sketch: Sketch, seed: int, cuts: list[int], batch: int
) -> None:
    harness = Shaker(sketch, random.Random(seed)).play()
    assert_expected(sketch, oracle.play(sketch), harness.state, harness.history)
    assert_no_defect(harness)
    invariants.assert_sound(harness, sketch, cuts=cuts, batch=batch)


@bounded(10)
@given(acyclic(steps_max=50), SEEDS, CUTS)
def test_a_large_workflow_comes_to_what_the_language_says(
    sketch: Sketch, seed: int, cuts: list[int]
) -> None:
    harness = Shaker(sketch, random.Random(seed)).play()
    assert_expected(sketch, oracle.play(sketch), harness.state, harness.history)
    invariants.assert_sound(harness, sketch, cuts=cuts, batch=7)


@bounded(100)
@given(cyclic(), SEEDS, CUTS, st.integers(1, 9))
def test_cycles_end_by_their_counters_or_by_the_limit(
    sketch: Sketch, seed: int, cuts: list[int], batch: int
) -> None:
    harness = Shaker(sketch, random.Random(seed)).play()
    assert_no_defect(harness)
    assert sketch.steps_max is not None
    assert harness.state.activations <= sketch.steps_max
    failure = harness.state.failure
    if failure is not None and failure.kind == "limit":
        assert harness.state.activations == sketch.steps_max
    invariants.assert_sound(harness, sketch, cuts=cuts, batch=batch)


@bounded(60)
@given(st.one_of(acyclic(), cyclic()), SEEDS, CUTS)
def test_a_cancelled_run_stops_and_starts_nothing_more(
    sketch: Sketch, seed: int, cuts: list[int]
) -> None:
    harness = Shaker(sketch, random.Random(seed), may_hold=False).cancel()
    types = harness.types()
    if "playbook.cancel.requested" in types:
        assert types[-1] == "execution.cancelled"
    invariants.assert_sound(harness, sketch, cuts=cuts, batch=3)


@bounded(60)
@given(st.one_of(acyclic(), cyclic(), acyclic(is_real=True)))
def test_random_workflows_are_lint_clean(sketch: Sketch) -> None:
    for must_be_real in (False, True):
        parsed = parse_playbook(text(sketch, must_be_real=must_be_real), level=Level.STRICT)
        assert parsed.playbook is not None, parsed.problems
        assert {problem.code for problem in parsed.problems} <= {"E205", "W907", "W911"}
