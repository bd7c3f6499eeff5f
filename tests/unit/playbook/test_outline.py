"""The plan of a playbook: graph, stages and needs, with nothing evaluated."""

from typing import Any

import msgspec
import pytest
from tests.support.playbooks import a_playbook

from noetl_playbook.outline import Outline, PlanStep, Stage, build_outline

NOOP = "tool: {kind: noop}"


def the_plan(workflow: str, *, root: str = "", given: dict[str, Any] | None = None) -> Outline:
    return build_outline(a_playbook(workflow, root=root), given=given)


def the_step(outline: Outline, name: str) -> PlanStep:
    return next(step for step in outline.steps if step.step == name)


def the_stage(loop: str, *, root: str = "", given: dict[str, Any] | None = None) -> Stage:
    outline = the_plan(f"- {{step: s, loop: {loop}, {NOOP}}}", root=root, given=given)
    stage = outline.steps[0].stage
    assert stage is not None
    return stage


def test_joins_cycles_and_unreachable_steps_are_marked() -> None:
    outline = the_plan(f"""
        - {{step: a, {NOOP}, next: {{spec: {{mode: inclusive}}, arcs: [{{step: b}}, {{step: c}}]}}}}
        - {{step: b, {NOOP}, next: {{arcs: [{{step: d}}]}}}}
        - {{step: c, {NOOP}, next: {{arcs: [{{step: d}}, {{step: c, when: "{{{{ c.more }}}}"}}]}}}}
        - {{step: d, {NOOP}, next: {{arcs: [{{step: a, on: call.error}}]}}}}
        - {{step: lost, {NOOP}}}
        - {{step: end, {NOOP}}}
        """)
    assert outline.entry == "a"
    assert outline.final == "end"
    assert outline.cycles == (("a", "b", "c", "d"),)
    assert outline.unreachable == ("lost", "end")
    assert [step.step for step in outline.steps if step.is_join] == ["c", "d"]
    arcs = {(arc.step, arc.on, arc.when) for arc in the_step(outline, "c").arcs}
    assert arcs == {("d", None, None), ("c", None, "{{ c.more }}")}
    assert the_step(outline, "d").arcs[0].is_failure_aware
    assert the_step(outline, "lost").arcs[0].is_implicit


@pytest.mark.parametrize(
    ("source", "root", "given", "units"),
    [
        ("[1, 2, 3]", "", None, 3),
        ("7", "", None, 7),
        ("-7", "", None, None),
        ("{a: 1, b: 2}", "", None, 2),
        ("'{{ [1, now(), 3] }}'", "", None, 3),
        ("'{{ workload.ids }}'", "workload: {ids: [1, 2]}\n", None, 2),
        ("'{{ ids }}'", "workload: {ids: [1, 2]}\n", {"ids": [1]}, 1),
        ("'{{ workload.n | int }}'", "workload: {n: '12'}\n", None, 12),
        ("'{{ workload.n }}'", "workload: {n: 12}\n", None, 12),
        ("'{{ workload.a.b[1] }}'", "workload: {a: {b: [0, [1, 2]]}}\n", None, 2),
        ("'{{ again }}'", "workload: {ids: [1], again: '{{ workload.ids }}'}\n", None, 1),
        ("'{{ self }}'", "workload: {self: '{{ self }}'}\n", None, None),
        ("'[1, 2]'", "", None, 2),
        ("'{{ ctx.load.rows }}'", "", None, None),
        ("'{{ range(5) }}'", "", None, None),
    ],
)
def test_units_are_counted_when_the_collection_is_given(
    source: str, root: str, given: dict[str, Any] | None, units: int | None
) -> None:
    assert the_stage(f"{{in: {source}, iterator: i}}", root=root, given=given).units == units


@pytest.mark.parametrize(
    ("spec", "frames"),
    [
        ("{mode: parallel}", 10),
        ("{mode: chunked, chunk_size: 4}", 3),
        ("{mode: chunked, frame: {max_rows: 3}}", 4),
        ("{mode: chunked, frame: {max_rows: '{{ workload.rows }}'}}", 2),
        ("{mode: chunked, frame: {max_rows: '{{ ctx.load.rows }}'}}", None),
        ("{mode: fanout, fanout: {shard_size: 3}}", 4),
        ("{mode: fanout, fanout: {partitions: 64}}", 10),
        ("{mode: fanout, fanout: {partitions: 4}}", 4),
    ],
)
def test_frames_are_counted_by_the_mode(spec: str, frames: int | None) -> None:
    stage = the_stage(f"{{in: 10, iterator: i, spec: {spec}}}", root="workload: {rows: 5}\n")
    assert stage.units == 10
    assert stage.frames == frames


def test_a_queue_and_a_reduce_tell_their_policy() -> None:
    outline = the_plan(f"""
        - step: drain
          loop:
            cursor: {{kind: postgres, auth: "{{{{ workload.pg }}}}", claim: SELECT 1}}
            iterator: row
            spec: {{max_in_flight: "{{{{ slots }}}}", frame: {{max_rows: 50}}}}
          {NOOP}
          next: {{arcs: [{{step: total}}]}}
        - {{step: total, reduce: {{from: drain, spec: {{mode: tree}}}}, {NOOP}}}
        """, root="workload: {pg: main_db, slots: 4}\n")  # fmt: skip
    drain, total = (step.stage for step in outline.steps)
    assert drain is not None
    assert (drain.kind, drain.mode, drain.max_in_flight, drain.units) == (
        "queue",
        "cursor",
        4,
        None,
    )
    assert drain.frame is not None
    assert drain.frame["max_rows"] == 50
    assert total is not None
    assert (total.kind, total.mode, total.sources) == ("reduce", "tree", ("drain",))
    assert outline.credentials == ("main_db",)


def test_what_steps_need_is_named() -> None:
    outline = the_plan(
        """
        - step: a
          tool:
            - {name: one, kind: http, url: "{{ keychain.shop.url }}", auth: {credential: web}}
            - {name: two, kind: postgres, auth: shop, query: SELECT 1}
            - {name: grade, kind: workbook}
            - {kind: playbook, path: "{{ workload.child }}"}
            - {kind: playbook, path: "other/{{ one.x }}"}
            - {kind: transfer, source: {type: postgres, auth: from_db, query: x},
               target: {type: postgres, auth: to_db, table: t}}
        """,
        root="""
        workload: {child: scoring/one}
        keychain: [{name: shop, kind: oauth2, auth: shop_app}]
        workbook: [{name: grade, tool: {kind: postgres, auth: "{{ workload.unknown }}", query: x}}]
        """,
    )
    (step,) = outline.steps
    assert step.tools == ("http", "postgres", "playbook", "transfer")
    assert step.credentials == ("from_db", "to_db", "web", "{{ workload.unknown }}")
    assert step.keychain == ("shop",)
    assert step.playbooks == ("other/{{ one.x }}", "scoring/one")
    assert outline.credentials == ("from_db", "shop_app", "to_db", "web", "{{ workload.unknown }}")


def test_a_plan_crosses_the_wire() -> None:
    outline = the_plan(f"- {{step: s, loop: {{in: [1], iterator: i}}, {NOOP}}}")
    assert msgspec.json.decode(msgspec.json.encode(outline), type=Outline) == outline


def test_a_long_chain_and_a_dense_graph_have_their_plan() -> None:
    arcs = [f"[{{step: s{max(0, i - 1)}}}, {{step: s{i + 1}}}]" for i in range(1500)]
    chain = "\n".join(
        f"- {{step: s{i}, {NOOP}, next: {{arcs: {item}}}}}" for i, item in enumerate(arcs)
    )
    outline = the_plan(f"{chain}\n- {{step: s1500, {NOOP}}}")
    assert len(outline.cycles) == 1
    assert len(outline.cycles[0]) == 1500
    assert outline.unreachable == ()
