"""A render that takes too much on the planner fails its step, and says what to do."""

from collections.abc import Iterator

import pytest
from msgspec import structs
from tests.support.planning import ROWS, PlannerHarness, done

from noetl_chassis import computation_deadline
from noetl_contracts.payloads import ResultEnvelope
from noetl_playbook.templates import render_limits
from noetl_playbook.templates.render_limits import RenderLimits

FRONT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t}
workflow:
"""
MIB = 1024 * 1024


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(render_limits, "PLANNER", RenderLimits(seconds=0.1))
    with computation_deadline.own_deadline_timer() as guard, render_limits.install_guard(guard):
        yield


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("rest", "place"),
    [
        ("set: {ctx.k: BOMB}", "field 'set.ctx.k'"),
        ("next: {arcs: [{step: s, when: BOMB}]}", "field 'next.arcs[0].when'"),
        ("next: {arcs: [{step: s, set: {ctx.k: BOMB}}]}", "field 'set.ctx.k'"),
    ],
)
def test_a_render_that_takes_too_long_fails_the_step_and_names_the_place(
    rest: str, place: str
) -> None:
    bomb = "\"{{ ('a' * 64 ~ '!') | regex_search('(a+)+$') }}\""
    harness = PlannerHarness(
        FRONT + f"  - step: s\n    tool: {{kind: noop}}\n    {rest.replace('BOMB', bomb)}\n"
    )
    harness.start()
    harness.tell(done(harness.sent()[0]))
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.step) == ("limit", "s")
    assert place in error.message
    assert "takes longer than 0.1 s in {{ ('a' * 64" in error.message


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [((15, 1), None), ((17, 0), "payload_too_large"), ((9, 9), "payload_too_large")],
)
def test_a_template_loads_a_bounded_number_of_bytes(
    sizes: tuple[int, int], kind: str | None
) -> None:
    harness = PlannerHarness(
        FRONT
        + "  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}\n"
        + "  - step: b\n    tool: {kind: noop}\n"
        + '    set: {ctx.k: "{{ (a.data.rows | length) ~ (b.data.rows | length) }}"}\n'
    )
    harness.start()
    for index, mib in enumerate(sizes):
        reference = structs.replace(ROWS, sha256=str(index) * 64, payload_bytes=mib * MIB)
        kept = {"tasks": {"t": {"kind": "python", "raw": {"rows": [1, 2]}}}, "last": "t"}
        harness.loaded[reference.sha256] = kept
        result = ResultEnvelope(status="ok", reference=reference, context={"shape": "pipeline"})
        harness.tell(structs.replace(done(harness.sent()[0]), result=result))
    failed = harness.events("playbook.failed")
    if kind is None:
        assert failed == []
        assert harness.state.ctx == {"k": "22"}
        return
    assert failed[0].error.kind == kind
    assert "output.select" in failed[0].error.message
