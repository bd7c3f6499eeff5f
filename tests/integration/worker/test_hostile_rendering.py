"""Whatever a template gives, wherever the worker renders one: an outcome, never a defect."""

import pytest
from msgspec import structs
from tests.support.attacks import TEMPLATES
from tests.support.registered import put
from tests.support.working import ORGANIZATION, TENANT, Bench, command_of, frame_of, step_of

from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command
from noetl_contracts.payloads import JSON_MEDIA_TYPE

MESSAGE_CHARACTERS_MAX = 4_000
STEP = """
  - step: s
    tool:
      - name: t
        kind: noop
        result: {r: 1}
        input: {a: 1}
        timeout: 5
        output: {store: {ttl: 60}, select: [{path: r, as: r}], accumulate: {max_items: 2}}
        set: {v: 1, ctx.a: 1}
        spec:
          rate_limit: {key: k, rate: 1000, per: 1, burst: 1000}
          policy:
            rules:
              - when: "{{ _attempt < 2 }}"
                then: {do: retry, attempts: 2, delay: 0, max_delay: 1, set: {ctx.b: 1}}
              - when: "{{ _attempt > 3 }}"
                then: {do: fail, message: m}
    output: {store: {ttl: 60}, select: [{path: r, as: r}]}
"""
EXTERNAL = """
  - step: s
    tool:
      name: t
      kind: external
      mode: approval
      correlation_key: k
      on_timeout: fail
      title: t
      description: d
      assignees: [ann]
      options: ["yes"]
      schema: {type: object}
      timeout: 5
      submit: {kind: noop, result: 1}
      cancel: {kind: noop, result: 1}
"""
FRAME = """
  - step: s
    loop:
      in: "{{ [] }}"
      iterator: it
      spec: {mode: fanout, fanout: {partitions: 2, key: k}}
    tool: {name: t, kind: noop, result: 1, set: {ctx.a: 1, iter.b: 1}}
"""
TASK, RULES = "tool/0", "tool/0/rules"
PLACES = [
    (
        STEP,
        [f"{TASK}/fields/result", f"{TASK}/fields/result/r", f"{TASK}/input", f"{TASK}/input/a"],
    ),
    (STEP, [f"{TASK}/timeout", f"{TASK}/auth", f"{TASK}/set/v", f"{TASK}/set/ctx.a"]),
    (STEP, [f"{TASK}/rate_limit/{name}" for name in ("key", "rate", "per", "burst")]),
    (STEP, [f"{TASK}/output/store/{name}" for name in ("ttl", "bucket", "prefix", "credential")]),
    (STEP, [f"{TASK}/output/accumulate/manifest_as", "output/store/ttl"]),
    (STEP, [f"{RULES}/0/when", f"{RULES}/0/then/set/ctx.b", f"{RULES}/1/then/message"]),
    (STEP, [f"{RULES}/0/then/{name}" for name in ("attempts", "delay", "max_delay")]),
    (EXTERNAL, [f"{TASK}/fields/{name}" for name in ("mode", "correlation_key", "on_timeout")]),
    (EXTERNAL, [f"{TASK}/fields/{name}" for name in ("title", "description", "schema")]),
    (EXTERNAL, [f"{TASK}/fields/assignees", f"{TASK}/fields/options", f"{TASK}/timeout"]),
    (EXTERNAL, [f"{TASK}/fields/assignees/0", f"{TASK}/fields/options/0"]),
    (FRAME, [f"{TASK}/fields/result", f"{TASK}/set/ctx.a", f"{TASK}/set/iter.b"]),
    (FRAME, ["loop/spec/fanout/key"]),
]


async def command(worker: Bench, text: str, place: str, template: str) -> Command:
    step = codec.decode_json(codec.encode_json(step_of(text)))
    put(step, place.split("/"), template)
    if text != FRAME:
        return command_of(step)
    reference = await worker.payloads.put_payload(
        codec.encode_json([1, 2]),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=JSON_MEDIA_TYPE,
    )
    work = frame_of(0, reference, total=2, size=2, frame={"max_rows": 2})
    return command_of(step, work=structs.replace(work, is_shard="fanout" in place))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("text", "place"), [(text, place) for text, places in PLACES for place in places]
)
async def test_what_a_template_gives_is_never_a_defect(
    worker: Bench, text: str, place: str
) -> None:
    defects: list[str] = []
    for template in TEMPLATES:
        facts = await worker.run(await command(worker, text, place, template))
        defects += [
            f"{template[:200]!a}: {error.kind}: {error.message[:300]}"
            for error in (getattr(fact, "error", None) for fact in facts)
            if error is not None
            and (error.kind == "internal" or len(error.message) > MESSAGE_CHARACTERS_MAX)
        ]
    assert not defects, "\n".join(defects)
