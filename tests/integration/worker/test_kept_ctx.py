# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Values of `ctx` that are kept by reference: tasks read and write them as any other."""

from typing import Any

from tests.support.working import ORGANIZATION, TENANT, Bench, command_of

from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command, StateSlice
from noetl_contracts.payloads import EVENT_INLINE_BYTES_MAX, PayloadRef
from noetl_contracts.requests.facts import CommandCompleted
from noetl_playbook.views import ctx_references

TEXT = "long " * 20_000


async def stored(worker: Bench, value: Any) -> PayloadRef:
    return await worker.payloads.put_payload(
        codec.encode_json(value),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type="application/json",
    )


async def marked(worker: Bench, value: Any) -> dict[str, Any]:
    return ctx_references.build_marker(await stored(worker, value), value)


async def completed(worker: Bench, command: Command) -> CommandCompleted:
    facts = await worker.run(command)
    assert isinstance(facts[-1], CommandCompleted), facts[-1]
    return facts[-1]


async def test_every_way_to_read_a_kept_value_gives_the_value(worker: Bench) -> None:
    ctx = {
        "text": await marked(worker, TEXT),
        "tree": await marked(worker, {"leaf": {"n": 7}, "branch": TEXT}),
        "list": await marked(worker, [{"i": index} for index in range(5_000)]),
        "n": 1,
    }
    command = command_of(
        """
  - step: s
    tool:
      - name: read
        kind: noop
        result:
          starts: "{{ ctx.text.startswith('long') and text | length == 100000 }}"
          leaf: "{{ ctx.tree.leaf.n }}"
          count: "{{ ctx.list | length }}"
          last: "{{ ctx.list[4999].i }}"
          sum: "{{ ctx.list | sum(attribute='i') }}"
          joined: "{{ ctx.n }}-{{ ctx.tree.leaf.n }}"
      - {name: code, kind: python, code: "def main(ctx, context):\\n  return {'n': len(context['list']), 'ok': ctx['tree']['leaf']['n'] == 7 and len(ctx['text']) == 100000}"}
""",
        ctx=ctx,
    )
    value = await worker.value((await completed(worker, command)).result)
    assert value["results"]["read"] == {
        "starts": True,
        "leaf": 7,
        "count": 5_000,
        "last": 4_999,
        "sum": sum(range(5_000)),
        "joined": "1-7",
    }
    assert value["results"]["code"] == {"n": 5_000, "ok": True}


async def test_large_writes_are_stored_before_they_are_reported(worker: Bench) -> None:
    ctx = {"tree": await marked(worker, {"leaf": 1, "branch": TEXT})}
    command = command_of(
        """
  - step: s
    tool:
      kind: noop
      set:
        ctx.text: "{{ workload.text }}"
        ctx.tree.leaf: 2
        ctx.small: "{{ ctx.tree.leaf }}"
""",
        ctx=ctx,
        workload={"text": TEXT},
    )
    patch = (await completed(worker, command)).patch
    assert patch["small"] == 1
    for name, value in (("text", TEXT), ("tree", {"leaf": 2, "branch": TEXT})):
        reference = ctx_references.get_marker_reference(patch[name])
        assert codec.decode_json(await worker.payloads.read_payload(reference)) == value
    assert len(codec.encode_json(patch)) < EVENT_INLINE_BYTES_MAX


async def test_a_later_task_sees_what_an_earlier_one_wrote(worker: Bench) -> None:
    ctx = {"text": await marked(worker, TEXT), "tree": await marked(worker, {"leaf": 1})}
    command = command_of(
        """
  - step: s
    tool:
      - {name: a, kind: noop, set: {ctx.tree.leaf: 2, ctx.text: short}}
      - {name: b, kind: noop, result: {leaf: "{{ ctx.tree.leaf }}", text: "{{ ctx.text }}"}}
""",
        ctx=ctx,
    )
    value = await worker.value((await completed(worker, command)).result)
    assert value["results"]["b"] == {"leaf": 2, "text": "short"}


async def test_ctx_may_come_by_reference_as_a_whole(worker: Bench) -> None:
    ref = await stored(worker, {"n": 5, "big": await marked(worker, TEXT)})
    command = command_of(
        '\n  - {step: s, tool: {kind: noop, result: "{{ ctx.n + (ctx.big | length) }}"}}\n',
        slice_=StateSlice(ctx_ref=ref),
    )
    assert await worker.value((await completed(worker, command)).result) == 100_005
