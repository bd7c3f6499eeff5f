"""`set` blocks of steps and arcs: one after the other, each seeing what was written before it."""

import pytest
from tests.support.planning import PlannerHarness, done, run_all
from tests.support.streams import chunk

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


def after(first: str, *, second: str = "", **answer: object) -> PlannerHarness:
    """Run a step that has ended with an answer, and one behind it."""
    harness = PlannerHarness(
        f"{HEAD}workflow:\n  - {{step: a, tool: {{kind: noop}}, {first}}}\n"
        f"  - {{step: b, tool: {{kind: noop}}{second}}}\n  - {{step: c, tool: {{kind: noop}}}}\n"
    )
    harness.start()
    harness.tell(done(harness.sent()[0], answer))
    run_all(harness)
    return harness


def test_the_set_of_an_arc_sees_what_the_step_and_the_arcs_before_it_wrote() -> None:
    harness = after(
        "set: {x: 1, ctx.m.n: 2}, next: {spec: {mode: inclusive}, arcs: ["
        '{step: b, set: {y: "{{ x + 1 }}", ctx.m.o: "{{ ctx.m.n }}"}}, '
        '{step: c, when: false, set: {y: 100}}, {step: c, set: {z: "{{ ctx.y + m.o }}"}}]}'
    )
    assert harness.state.ctx == {"x": 1, "m": {"n": 2, "o": 2}, "y": 2, "z": 4}
    assert harness.types()[-1] == "playbook.completed"


def test_the_values_of_one_block_are_of_the_state_before_it() -> None:
    harness = after(
        'set: {p: 1, q: 2}, next: {arcs: [{step: b, set: {p: "{{ q }}", q: "{{ p }}"}}]}'
    )
    assert harness.state.ctx == {"p": 2, "q": 1}


def test_the_condition_of_an_arc_sees_no_set_of_another() -> None:
    harness = after(
        "next: {spec: {mode: inclusive}, arcs: "
        '[{step: b, set: {n: 1}}, {step: c, when: "{{ ctx.n is defined }}"}]}'
    )
    assert [event.step for event in harness.events("step.enter")] == ["a", "b"]


def test_arcs_of_a_chunk_see_each_other() -> None:
    harness = PlannerHarness(
        f"{HEAD}workflow:\n"
        '  - step: a\n    tool: {kind: python, code: "yield 1", stream: {}}\n'
        "    next: {spec: {mode: inclusive}, arcs: [{step: b, on: call.partial, set: {n: 1}}, "
        '{step: b, on: call.partial, set: {m: "{{ ctx.n + 1 }}"}}]}\n'
        "  - {step: b, tool: {kind: noop}}\n"
    )
    harness.start()
    harness.tell(chunk(harness.sent()[0], 0))
    assert harness.state.ctx == {"n": 1, "m": 2}


@pytest.mark.parametrize("before", ["1", "[1]", "text", "null"])
@pytest.mark.parametrize(
    ("key", "name"), [("ctx.p.x", "p"), ("p.x.y", "p"), ("ctx.o.p.x", "p"), ("step.o.p.x", "p")]
)
def test_a_key_below_what_has_no_keys_fails_the_step_and_names_it(
    before: str, key: str, name: str
) -> None:
    harness = after(
        f"set: {{p: {before}, ctx.o.p: {before}}}, next: {{arcs: [{{step: b}}]}}",
        second=f", set: {{{key}: 4}}",
    )
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.step) == ("validation", "b")
    written = key if key.startswith("ctx.") else f"ctx.{key.removeprefix('step.')}"
    assert f"step 'b', field 'set.{written}': '{name}' is not a mapping" in error.message
    assert f"set '{name}' as a whole" in error.message


def test_a_key_below_nothing_makes_the_mappings_on_its_way() -> None:
    harness = after("set: {ctx.p.q.r: 1, ctx.p.q.s: 2, ctx.p.t: 3}")
    assert harness.state.ctx == {"p": {"q": {"r": 1, "s": 2}, "t": 3}}


def test_a_variable_may_be_called_like_a_room() -> None:
    harness = after("set: {ctx.step.x: 1, ctx.ctx.y: 2}")
    assert harness.state.ctx == {"step": {"x": 1}, "ctx": {"y": 2}}
