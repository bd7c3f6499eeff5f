"""What the planner's templates look into of what is kept by reference is bounded."""

from typing import Any

import pytest
from msgspec import structs
from tests.support.planning import ROWS, PlannerHarness, done
from tests.support.slices import frame_done
from tests.support.streams import begun, chunk, playbook

from noetl_contracts.commands.loop_collections import CollectionForm
from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import Limits
from noetl_planner.domain.loops import loop_ends
from noetl_playbook.views import ctx_references, loop_parts, result_envelope
from noetl_playbook.views.loop_parts import LoopPart
from noetl_playbook.views.results import LoopResult, PipelineResult, TaskResult

FRONT = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t}\nworkflow:\n"
MIB = 1024 * 1024
LIST, TEXT = [{"id": 1}, {"id": 2}], "some text"


def payload(digit: str, mib: float) -> PayloadRef:
    digest = digit * 64
    uri = ROWS.uri.removesuffix(ROWS.sha256) + digest
    return structs.replace(ROWS, uri=uri, sha256=digest, payload_bytes=int(mib * MIB))


def two_steps(rest: str, *, following: str = "tool: {kind: noop}") -> str:
    return (
        FRONT
        + f"  - step: a\n    tool: {{kind: noop}}\n    {rest}\n"
        + f"  - step: b\n    {following}\n"
    )


def told(
    text: str, limits: Limits | None = None, /, *, is_loaded: bool = False, **ctx: tuple[float, Any]
) -> PlannerHarness:
    """Run the first step, which writes values of so many MiB to `ctx` by reference."""
    harness = PlannerHarness(text, limits=limits)
    harness.start()
    patch = {}
    for digit, (name, (mib, value)) in zip("123456789", ctx.items(), strict=False):
        reference = payload(digit, mib)
        patch[name] = ctx_references.build_marker(reference, value)
        if is_loaded:
            harness.loaded[reference.sha256] = value
    harness.tell(done(harness.sent()[0], None, **patch))
    return harness


def error_of(harness: PlannerHarness) -> ErrorObject:
    error: ErrorObject = harness.events("playbook.failed")[0].error
    return error


@pytest.mark.parametrize(
    ("text", "step", "place"),
    [
        (
            two_steps('next: {arcs: [{step: b, when: "{{ ctx.big[0].id == 1 }}"}]}'),
            "a",
            "field 'next.arcs[0].when'",
        ),
        (
            two_steps("next: {arcs: [{step: b, when: \"{{ ctx.text == 't' }}\"}]}"),
            "a",
            "field 'next.arcs[0].when'",
        ),
        (two_steps('set: {ctx.n: "{{ vars.big[0].id }}"}'), "a", "field 'set.ctx.n'"),
        (two_steps("set: {ctx.tree.leaf: 1}"), "a", "field 'set.ctx.tree.leaf'"),
        (
            two_steps(
                "next: {arcs: [{step: b}]}",
                following="tool: {kind: noop}\n    spec: {policy: {admit: "
                '{rules: [{when: "{{ ctx.big[0].id }}", then: {allow: true}}]}}}',
            ),
            "b",
            "field 'spec.policy.admit'",
        ),
        (
            two_steps(
                "next: {arcs: [{step: b}]}",
                following='tool: {kind: noop}\n    loop: {in: "{{ ctx.tree }}", iterator: i}',
            ),
            "b",
            "field 'loop.in'",
        ),
    ],
)
@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_value_of_ctx_is_admitted_like_a_step_s_result(
    text: str, step: str, place: str, *, is_loaded: bool
) -> None:
    values = {"big": (17, LIST), "text": (17, TEXT), "tree": (17, {"leaf": 0})}
    harness = told(text, is_loaded=is_loaded, **values)
    error = error_of(harness)
    assert (error.kind, error.code, error.step) == ("payload_too_large", "TOO_LARGE", step)
    assert f"step '{step}', {place}: the template loads {17 * MIB} bytes" in error.message
    assert "under a name of its own" in error.message


def test_a_result_that_is_too_large_to_be_read_as_a_list_refuses_the_loop() -> None:
    following = 'tool: {kind: noop}\n    loop: {in: "{{ a }}", iterator: i}'
    harness = PlannerHarness(two_steps("next: {arcs: [{step: b}]}", following=following))
    harness.start()
    context = {"shape": "pipeline", "fields": {}}
    result = ResultEnvelope(status="ok", reference=payload("a", 17), context=context)
    harness.tell(structs.replace(done(harness.sent()[0]), result=result))
    assert error_of(harness).kind == "payload_too_large"
    assert "step 'b', field 'loop.in'" in error_of(harness).message


def test_the_error_of_a_template_names_its_expression() -> None:
    harness = told(two_steps('set: {ctx.n: "{{ ctx.big[0].id }}"}'), big=(300, LIST))
    assert error_of(harness).message.endswith("in {{ ctx.big[0].id }}")


def test_what_metadata_answers_looks_into_nothing() -> None:
    reference = structs.replace(payload("1", 300), row_count=2)
    harness = PlannerHarness(two_steps('set: {ctx.n: "{{ ctx.big | length }}"}'))
    harness.start()
    harness.tell(done(harness.sent()[0], None, big=ctx_references.build_marker(reference, LIST)))
    assert harness.state.ctx["n"] == 2


@pytest.mark.parametrize(("mib", "kind"), [(6, None), (9, "payload_too_large")])
def test_results_and_ctx_count_together_in_one_render(mib: int, kind: str | None) -> None:
    harness = PlannerHarness(
        two_steps(
            "next: {arcs: [{step: b}]}",
            following='tool: {kind: noop}\n    set: {ctx.n: "{{ a.rows[0].id + ctx.big[0].id }}"}',
        )
    )
    harness.start()
    reference, value = payload("a", 9), payload("b", mib)
    harness.loaded[reference.sha256] = result_of({"rows": LIST})
    harness.loaded[value.sha256] = LIST
    result = ResultEnvelope(status="ok", reference=reference, context={"shape": "pipeline"})
    fact = done(harness.sent()[0], None, big=ctx_references.build_marker(value, LIST))
    harness.tell(structs.replace(fact, result=result))
    harness.tell(done(harness.sent()[0]))
    if kind is None:
        assert harness.state.ctx["n"] == 2
        return
    assert error_of(harness).kind == kind
    assert f"loads {18 * MIB} bytes" in error_of(harness).message


def test_each_render_counts_for_itself() -> None:
    block = ", ".join(f'ctx.of_{name}: "{{{{ ctx.{name}[0].id }}}}"' for name in "xyz")
    harness = told(
        two_steps(f"set: {{{block}}}"), is_loaded=True, **dict.fromkeys("xyz", (15, LIST))
    )
    assert {key: harness.state.ctx[key] for key in ("of_x", "of_y", "of_z")} == {
        "of_x": 1,
        "of_y": 1,
        "of_z": 1,
    }


@pytest.mark.parametrize(
    ("limits", "kind", "text"),
    [
        (Limits(read_bytes_max=44 * MIB), "payload_too_large", f"looks into {45 * MIB} bytes"),
        (Limits(read_values_max=2), "limit", "looks into more than 2 values"),
    ],
)
def test_what_one_fact_leads_to_is_bounded_together(limits: Limits, kind: str, text: str) -> None:
    block = ", ".join(f'ctx.of_{name}: "{{{{ ctx.{name}[0].id }}}}"' for name in "xyz")
    harness = told(
        two_steps(f"set: {{{block}}}"), limits, is_loaded=True, **dict.fromkeys("xyz", (15, LIST))
    )
    error = error_of(harness)
    assert (error.kind, error.step) == (kind, "a")
    assert "step 'a', field 'set.ctx.of_z': what follows from one event" in error.message
    assert text in error.message
    assert "let tasks read the others" in error.message
    assert error.message.endswith("in {{ ctx.z[0].id }}")


def test_facts_that_come_together_count_each_for_itself() -> None:
    arcs = "next: {spec: {mode: inclusive}, arcs: [{step: x}, {step: y}, {step: z}]}"
    steps = "".join(
        f"  - step: {name}\n    tool: {{kind: noop}}\n"
        f'    set: {{ctx.of_{name}: "{{{{ ctx.{name}[0].id }}}}"}}\n'
        for name in "xyz"
    )
    text = FRONT + f"  - step: a\n    tool: {{kind: noop}}\n    {arcs}\n" + steps
    limits = Limits(read_bytes_max=16 * MIB, read_values_max=1)
    harness = told(text, limits, is_loaded=True, **dict.fromkeys("xyz", (15, LIST)))
    harness.tell(*(done(item) for item in harness.sent()))
    assert harness.types()[-1] == "playbook.completed"


def test_the_rows_of_a_chunk_are_admitted() -> None:
    harness, producer = begun(playbook(arc=', when: "{{ output.data.rows[0].ok }}"'))
    one = chunk(producer, 0)
    harness.tell(structs.replace(one, ref=structs.replace(one.ref, payload_bytes=17 * MIB)))
    (failed,) = harness.events("step.failed")
    assert failed.error.kind == "payload_too_large"
    assert "field 'next.arcs[0].when'" in failed.error.message
    # The step's own arcs may handle it.
    assert harness.state.ctx["error"] == "payload_too_large"


def test_the_results_of_a_loop_s_units_are_admitted() -> None:
    text = (
        FRONT
        + "  - step: a\n    loop: {in: [1, 2], iterator: i, spec: {mode: parallel}}\n"
        + '    tool: {kind: noop}\n    set: {ctx.all: "{{ fanin.results }}"}\n'
    )
    harness = PlannerHarness(text)
    harness.start()
    harness.tell(*(done(item) for item in harness.sent()))
    assert harness.last is not None
    (run_id,) = harness.last.to_collect
    listed = [
        LoopPart(
            index=index,
            key=str(index),
            result=ResultEnvelope(
                status="ok",
                reference=payload(str(index), 9),
                context={"shape": "pipeline"},
            ),
        )
        for index in range(2)
    ]
    for part in listed:
        assert part.result is not None
        assert part.result.reference is not None
        harness.loaded[part.result.reference.sha256] = result_of([1])
    loop = next(run.loop for run in harness.state.runs.values() if run.loop is not None)
    fanin = {**loop_ends.build_fanin_counters(loop), **loop_parts.build_parts_entry(listed)}
    collected = result_envelope.build_inline_context(
        LoopResult(results=[], stats={"total": 2}, fanin=fanin)
    )
    result = ResultEnvelope(status="ok", context=collected)
    harness.tell(facts.ItemsCollected(run_id=run_id, result=result))
    assert error_of(harness).kind == "payload_too_large"
    assert f"loads {18 * MIB} bytes" in error_of(harness).message


def test_parts_of_several_sources_are_bounded_together() -> None:
    text = (
        FRONT
        + "".join(
            f"  - step: {name}\n    loop: {{in: [1, 2], iterator: i, spec: {{mode: fanout}}}}\n"
            f"    tool: {{kind: noop}}\n    next: {{arcs: [{{step: {following}}}]}}\n"
            for name, following in (("x", "y"), ("y", "total"))
        )
        + "  - step: total\n    reduce: {from: [x, y], iterator: parts}\n    tool: {kind: noop}\n"
    )
    harness = PlannerHarness(text)
    harness.start()
    for digit in "12":
        harness.tell(*(frame_done(item) for item in harness.sent()))
        assert harness.last is not None
        (run_id,) = harness.last.to_collect
        loop = next(run.loop for run in harness.state.runs.values() if run.loop is not None)
        reference = structs.replace(payload(digit, 40), row_count=2)
        harness.loaded[reference.sha256] = []
        fanin = {**loop_ends.build_fanin_counters(loop), **loop_parts.build_parts_entry(reference)}
        kept_form = LoopResult(results=[], stats={"total": 2}, fanin=fanin)
        result = ResultEnvelope(
            status="ok", context=result_envelope.build_inline_context(kept_form)
        )
        harness.tell(facts.ItemsCollected(run_id=run_id, result=result))
    error = error_of(harness)
    assert (error.kind, error.step) == ("payload_too_large", "total")
    assert (
        f"field 'reduce.from': what follows from one event looks into {80 * MIB}" in error.message
    )


@pytest.mark.parametrize("mode", ["{mode: parallel}", "{mode: chunked, chunk_size: 1}"])
def test_a_loop_over_a_list_of_ctx_takes_it_by_reference(mode: str) -> None:
    following = (
        f'tool: {{kind: noop}}\n    loop: {{in: "{{{{ ctx.big }}}}", iterator: i, spec: {mode}}}'
    )
    harness = PlannerHarness(two_steps("next: {arcs: [{step: b}]}", following=following))
    harness.start()
    reference = structs.replace(payload("1", 300), row_count=2)
    harness.tell(done(harness.sent()[0], None, big=ctx_references.build_marker(reference, LIST)))
    (started,) = harness.events("loop.started")
    assert (started.collection_ref, started.collection_form) == (reference, CollectionForm.LIST)
    assert started.total == 2


def test_a_list_of_ctx_is_cut_by_the_hash_of_its_items() -> None:
    spec = "{mode: fanout, fanout: {partitions: 2, partition_by: id}}"
    following = (
        f'tool: {{kind: noop}}\n    loop: {{in: "{{{{ ctx.big }}}}", iterator: i, spec: {spec}}}'
    )
    harness = PlannerHarness(two_steps("next: {arcs: [{step: b}]}", following=following))
    harness.start()
    reference = structs.replace(payload("1", 1), row_count=2)
    harness.loaded[reference.sha256] = LIST
    harness.tell(done(harness.sent()[0], None, big=ctx_references.build_marker(reference, LIST)))
    assert harness.events("loop.started")[0].total == 2


def result_of(raw: Any) -> dict[str, Any]:
    kept_form = PipelineResult(tasks={"t": TaskResult(kind="python", raw=raw)}, last="t")
    data: dict[str, Any] = result_envelope.build_inline_context(kept_form)["data"]
    return data
