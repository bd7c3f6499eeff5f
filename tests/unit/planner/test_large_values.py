import pytest
from tests.support.planning import PlannerHarness, done

from noetl_contracts import codec
from noetl_contracts.payloads import EVENT_INLINE_BYTES_MAX, PayloadRef
from noetl_contracts.requests import facts
from noetl_playbook.views import ctx_references

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
CHAIN = (
    HEAD
    + """
workload: {name: small, list: []}
workflow:
  - step: one
    tool: {kind: noop}
    set: {ctx.copy: "{{ ctx.text | default('t') }}", ctx.tree.leaf: 1}
    next: {arcs: [{step: two, when: "{{ ctx.text is defined and ctx.text | length > 3 }}"}]}
  - {step: two, tool: {kind: noop}, set: {ctx.tree.leaf: 2, ctx.n: "{{ ctx.list | length }}"}}
"""
)
TEXT = "x" * 100_000


def in_the_store(harness: PlannerHarness, value: object) -> PayloadRef:
    data = codec.encode_canonical(value)
    digest = codec.digest_hex(data)
    harness.loaded[digest] = value
    return PayloadRef(
        uri=f"noetl://tenant/default/org/default/payloads/sha256/{digest}",
        sha256=digest,
        media_type="application/json",
        payload_bytes=len(data),
    )


def event_bytes(harness: PlannerHarness) -> int:
    return max(len(codec.encode_json(item.event)) for item in harness.history)


def test_a_large_value_is_kept_by_reference_and_nobody_notices() -> None:
    harness = PlannerHarness(CHAIN)
    harness.start()
    tree = {"leaf": 0, "branch": TEXT}
    harness.tell(done(harness.sent()[0], {}, text=TEXT, tree=tree, list=[TEXT, TEXT]))
    state = harness.state.ctx
    assert all(ctx_references.is_marker(state[name]) for name in ("text", "tree", "list", "copy"))
    # The same content is one payload.
    assert ctx_references.get_marker_reference(
        state["text"]
    ) == ctx_references.get_marker_reference(state["copy"])
    assert harness.loaded[ctx_references.get_marker_reference(state["tree"]).sha256] == {
        **tree,
        "leaf": 1,
    }
    harness.tell(done(harness.sent()[0]))
    assert harness.types()[-1] == "playbook.completed"
    assert harness.state.ctx["n"] == 2
    assert (
        harness.loaded[ctx_references.get_marker_reference(harness.state.ctx["tree"]).sha256][
            "leaf"
        ]
        == 2
    )
    assert event_bytes(harness) < EVENT_INLINE_BYTES_MAX + 2048


def test_many_values_of_one_patch_stay_small_in_the_event() -> None:
    harness = PlannerHarness(CHAIN)
    harness.start()
    patch = {f"k{n}": "y" * 5_000 for n in range(10)}
    harness.tell(done(harness.sent()[0], {"text": "t"}, **patch))
    (call,) = harness.events("call.done")
    inline = [name for name, value in call.patch.items() if not ctx_references.is_marker(value)]
    assert len(inline) == 3
    assert event_bytes(harness) < EVENT_INLINE_BYTES_MAX + 4096


def test_a_large_ctx_travels_by_reference() -> None:
    harness = PlannerHarness(CHAIN)
    harness.start()
    (first,) = harness.sent()
    for n in range(10):
        harness.tell(
            facts.CtxWriteRequested(
                request_id=str(n), patch={f"k{n}": "y" * 10_000, "text": "long"}
            )
        )
    harness.tell(done(first, {"text": "t"}))
    (second,) = harness.sent()
    assert second.slice.ctx == {}
    assert second.slice.ctx_ref is not None
    assert harness.loaded[second.slice.ctx_ref.sha256] == harness.state.ctx


def test_ctx_as_a_whole_is_bounded() -> None:
    limit = "executor: {spec: {policy: {limits: {max_ctx_bytes: 1000}}}}\n"
    harness = PlannerHarness(CHAIN.replace("workload:", f"{limit}workload:", 1))
    harness.start()
    harness.tell(done(harness.sent()[0], {"text": "t"}, big="z" * 2_000))
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.step) == ("payload_too_large", "one")
    assert "ctx.big" in error.message


def test_a_value_in_the_form_of_a_reference_must_be_this_tenants_own() -> None:
    harness = PlannerHarness(CHAIN)
    harness.start()
    store = in_the_store(harness, TEXT)
    stolen = {
        ctx_references.KEY: {
            "ref": {**codec.to_builtins(store), "uri": store.uri.replace("default", "x")}
        }
    }
    harness.tell(done(harness.sent()[0], {}, stolen=stolen))
    assert harness.events("playbook.failed")[0].error.kind == "validation"


@pytest.mark.parametrize("stored", [False, True])
def test_large_inputs_begin_by_reference_and_are_read_when_they_are_named(
    stored: bool,  # noqa: FBT001 - what the test is about
) -> None:
    text = CHAIN.replace(
        "ctx.text is defined and ctx.text | length > 3", "workload.list | length == 2"
    )
    harness = PlannerHarness(text)
    inputs = {"list": [TEXT, TEXT]}
    fact = facts.ExecutionRequested(path="p", workload=inputs)
    if stored:
        fact = facts.ExecutionRequested(path="p", workload_ref=in_the_store(harness, inputs))
    harness.tell(fact)
    (begun,) = harness.events("playbook.initialized")
    assert begun.workload == {}
    assert harness.loaded[begun.workload_ref.sha256] == {"name": "small", **inputs}
    (first,) = harness.sent()
    assert first.slice.workload_ref == begun.workload_ref
    harness.tell(done(first, {"text": "t"}))
    assert harness.sent()[0].step == "two"


def test_merged_inputs_are_bounded() -> None:
    harness = PlannerHarness(CHAIN)
    assert harness.start(list=["x" * 4_200_000]) == ["playbook.initialized", "playbook.failed"]
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.step) == ("payload_too_large", "(workload)")
