# ruff: noqa: E501 - a playbook reads best with one task to a line
"""The numbers of rules: their limits, their defaults below a limit, and values that are none."""

from typing import Any

import pytest
from tests.support.working import ORGANIZATION, TENANT, Bench, command_of

from noetl_contracts import codec
from noetl_contracts.commands.command_work import StepResult
from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import JSON_MEDIA_TYPE, ResultEnvelope
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult


async def value_of(worker: Bench, step: str, **about: Any) -> Any:
    *_, done = await worker.run(command_of(step, **about))
    assert isinstance(done, CommandCompleted), done
    return await worker.value(done.result)


async def error_of(worker: Bench, step: str, **about: Any) -> ErrorObject:
    *_, done = await worker.run(command_of(step, **about))
    assert isinstance(done, CommandFailed), done
    return done.error


def retrying(rule: str) -> str:
    """A task that succeeds when it is tried for the last time of `workload.wanted`."""
    return f"""
  - step: s
    tool:
      name: t
      kind: noop
      result: {{n: "{{{{ _attempt }}}}"}}
      spec: {{policy: {{rules: [{{when: "{{{{ output.data.n < workload.wanted }}}}", then: {{do: retry{rule}}}}}]}}}}
"""


@pytest.mark.parametrize(
    ("limits", "tries"), [({}, 3), ({"attempts": 2}, 2), ({"attempts": 1}, 1), ({"attempts": 9}, 3)]
)
async def test_a_rule_that_names_no_attempts_has_as_many_as_the_limit_leaves(
    worker: Bench, limits: dict[str, int], tries: int
) -> None:
    found = await value_of(worker, retrying(""), workload={"wanted": tries}, limits=limits)
    assert found == {"n": tries}
    error = await error_of(worker, retrying(""), workload={"wanted": tries + 1}, limits=limits)
    assert (error.kind, error.attempt) == ("policy", tries)


async def test_a_rule_that_names_no_max_delay_waits_no_longer_than_the_limit_leaves(
    worker: Bench,
) -> None:
    workload = {"wanted": 2}
    found = await value_of(worker, retrying(""), workload=workload, limits={"max_delay": 60})
    assert found == {"n": 2}
    # A wait of an hour would not end before the test does.
    rule = ", backoff: exponential, delay: 3600"
    found = await value_of(worker, retrying(rule), workload=workload, limits={"max_delay": 1})
    assert found == {"n": 2}


@pytest.mark.parametrize(
    ("rule", "limits", "field"),
    [
        (", attempts: 5", {"attempts": 4}, "attempts"),
        (", attempts: '{{ 3 }}'", {"attempts": 2}, "attempts"),
        (", delay: 5", {"delay": 4}, "delay"),
        (", max_delay: 61", {"max_delay": 60}, "max_delay"),
        (", max_delay: '{{ 300 }}'", {"max_delay": 60}, "max_delay"),
        (", delay: '{{ 1e999 }}'", {}, "delay"),
    ],
)
async def test_a_number_of_the_author_beyond_a_limit_is_an_error(
    worker: Bench, rule: str, limits: dict[str, int], field: str
) -> None:
    error = await error_of(worker, retrying(rule), workload={"wanted": 2}, limits=limits)
    assert (error.kind, error.code, error.task) == ("limit", field, "t")
    assert f"step 's', task 't', field '{field}'" in error.message


JUMPING = """
  - step: s
    tool:
      - {name: a, kind: noop, set: {iter.n: "{{ (iter.n | default(0)) + 1 }}", ctx.seen: "{{ iter.n | default(0) }}"}}
      - {name: b, kind: noop, result: {n: "{{ iter.n }}"}, spec: {policy: {rules: [{when: "{{ iter.n < 3 }}", then: {do: jump, to: prev, delay: DELAY}}]}}}
"""


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (", attempts: \"{{ 'often' }}\"", "attempts"),
        (", attempts: '{{ 2.5 }}'", "attempts"),
        (", delay: \"{{ 'soon' }}\"", "delay"),
        (", delay: '{{ [1] }}'", "delay"),
        (", delay: '{{ true }}'", "delay"),
        (", delay: \"{{ 'nan' | float }}\"", "delay"),
        (", max_delay: \"{{ 'late' }}\"", "max_delay"),
    ],
)
async def test_what_is_no_number_is_an_error_that_names_the_field(
    worker: Bench, rule: str, field: str
) -> None:
    error = await error_of(worker, retrying(rule), workload={"wanted": 2})
    assert (error.kind, error.retryable, error.task) == ("validation", False, "t")
    assert f"step 's', task 't', field '{field}'" in error.message


async def test_the_delay_of_a_jump_is_held_to_the_same(worker: Bench) -> None:
    error = await error_of(worker, JUMPING.replace("DELAY", "\"{{ 'soon' }}\""))
    assert (error.kind, error.task) == ("validation", "b")
    assert "field 'delay': 'soon' is not a duration" in error.message
    assert (await value_of(worker, JUMPING.replace("DELAY", '"{{ none }}"')))["n"] == 3


async def test_a_delay_that_cannot_be_rendered_says_where_and_keeps_the_writes(
    worker: Bench,
) -> None:
    *_, done = await worker.run(command_of(JUMPING.replace("DELAY", '"{{ nope }}"')))
    assert isinstance(done, CommandFailed), done
    assert (done.error.kind, done.error.task, done.patch) == ("template", "b", {"seen": 0})
    assert "step 's', task 'b', field 'delay': 'nope' is undefined" in done.error.message


async def stored(worker: Bench, raw: Any) -> dict[str, StepResult]:
    """Results of an earlier step `big`, kept by reference."""
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="python", raw=raw)}, last="t")
    reference = await worker.payloads.put_payload(
        codec.encode_json(pipeline_result),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=JSON_MEDIA_TYPE,
    )
    envelope = ResultEnvelope(
        status="ok",
        reference=reference,
        context=result_envelope.build_reference_context(pipeline_result, {}),
    )
    return {"big": StepResult(status="COMPLETED", result=envelope)}


async def test_every_number_of_a_rule_may_read_a_stored_result(worker: Bench) -> None:
    steps = await stored(worker, {"zero": [0], "two": [2], "x": "y" * 100})
    jump = JUMPING.replace("DELAY", '"{{ big.zero[0] }}"')
    assert (await value_of(worker, jump, steps=steps))["n"] == 3
    rule = (
        ", delay: '{{ big.zero[0] }}', max_delay: '{{ big.zero[0] }}', attempts: '{{ big.two[0] }}'"
    )
    found = await value_of(worker, retrying(rule), workload={"wanted": 2}, steps=steps)
    assert found == {"n": 2}


async def test_a_message_that_cannot_be_rendered_says_where_and_keeps_the_writes(
    worker: Bench,
) -> None:
    step = """
  - step: s
    tool: {name: t, kind: noop, spec: {policy: {rules: [{else: {do: fail, message: "x {{ nope }}", set: {ctx.a: 1}}}]}}}
"""
    *_, done = await worker.run(command_of(step))
    assert isinstance(done, CommandFailed), done
    assert (done.error.kind, done.error.task, done.patch) == ("template", "t", {"a": 1})
    assert "step 's', task 't', field 'message': 'nope' is undefined" in done.error.message
