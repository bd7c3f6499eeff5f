# ruff: noqa: E501 - a playbook reads best with one task to a line
"""How a worker lets a waiting pipeline go, and how another one takes it up."""

from typing import Any

import pytest
from msgspec import structs
from tests.support.working import Bench, command_of

from noetl_contracts import codec, ids
from noetl_contracts.commands.command_work import Command, ItemWork
from noetl_contracts.commands.waits import DELIVERED, STOPPED, ChildWait, MessageWait, Resume
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import ExecutionId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests.facts import (
    CommandCompleted,
    CommandFailed,
    CommandParked,
    CommandStarted,
    CommandStopped,
)
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_worker.commands.command_context import CommandContext
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.payloads.result_store import ResultStore
from noetl_worker.payloads.tenant_payloads import PayloadCache, PayloadOwner, TenantPayloads
from noetl_worker.pipeline.compiled_tasks import compile_pipeline
from noetl_worker.pipeline.interpreter import Pipeline
from noetl_worker.pipeline.state import PipelineUnit
from noetl_worker.task_logs.log_journal import LogJournal

CHILD = ExecutionId("264905529753600777")


async def parked(worker: Bench, command: Command) -> CommandParked:
    facts = await worker.run(command)
    assert [type(fact) for fact in facts] == [CommandStarted, CommandParked], facts
    fact = facts[-1]
    assert isinstance(fact, CommandParked)
    return fact


def resumed(command: Command, fact: CommandParked, value: Any = None, **ended: Any) -> Command:
    """The command as the planner sends it once the wait is over."""
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="python", raw=value)}, last="t")
    resume = Resume(
        key=fact.wait.key,
        ref=fact.resume_ref,
        status="COMPLETED",
        child_execution_id=CHILD,
        result=None
        if ended
        else ResultEnvelope(
            status="ok", context=result_envelope.build_inline_context(pipeline_result)
        ),
        **ended,
    )
    return structs.replace(command, attempt=command.attempt + 1, resume=resume)


async def completed(worker: Bench, command: Command) -> tuple[Any, dict[str, Any]]:
    fact = (await worker.run(command))[-1]
    assert isinstance(fact, CommandCompleted), fact
    return await worker.value(fact.result), fact.patch


async def test_a_waiting_task_lets_its_command_go(worker: Bench) -> None:
    command = command_of("""
  - step: s
    tool: {kind: playbook, path: /some/where/, version: "3", return_step: r, timeout: 5m, input: {n: "{{ ctx.n }}"}}
""", ctx={"n": 4})  # fmt: skip
    wait = (await parked(worker, command)).wait
    assert isinstance(wait, ChildWait)
    assert (wait.path, wait.version, wait.return_step) == ("some/where", 3, "r")
    assert (wait.workload, wait.timeout_s, wait.is_awaited) == ({"n": 4}, 300, True)
    assert wait.key == "s_task/1/1"
    _, unsettled = await worker.commands.count_pending()
    assert unsettled == 0


async def test_a_pipeline_goes_on_inside_the_attempt_that_waited(worker: Bench) -> None:
    command = command_of("""
  - step: s
    tool:
      - name: count
        kind: noop
        result: {page: "{{ (iter.page | default(0)) + 1 }}"}
        set: {iter.page: "{{ output.page }}", ctx.pages: "{{ output.page }}", seen: "{{ output.page }}"}
      - name: ask
        kind: playbook
        path: p
        input: {mark: m}
        output: {accumulate: {merge_path: n, manifest_as: gathered}}
        spec:
          policy:
            rules:
              - {when: "{{ output.n < 3 }}", then: {do: jump, to: count, set: {ctx.mark: "{{ input.mark }}"}}}
              - {else: {then: {do: continue}}}
      - {name: end, kind: noop, result: {all: "{{ gathered }}", seen: "{{ seen }}", took: "{{ output.meta.attempt }}"}}
""")  # fmt: skip
    for n in (1, 2, 3):
        fact = await parked(worker, command)
        assert fact.wait.key == f"ask/{n}/1"
        command = resumed(command, fact, {"n": n})
    value, patch = await completed(worker, command)
    assert value["end"] == {"all": [1, 2, 3], "seen": 3, "took": 1}
    assert value["ask"]["execution_id"] == CHILD
    assert patch == {"pages": 3, "mark": "m"}


@pytest.mark.parametrize(
    ("answers", "path", "notes"),
    [
        ([{"none": 0}, {"n": 2}], "page", []),
        ([{"n": 1}, {"none": 0}], "page", []),
        ([{"none": 0}, {"none": 0}], "page", ["collected_nothing"]),
        # What another task of the pipeline collects has nothing until the end.
        ([{"none": 0}, {"n": 2}], "nowhere", ["collected_nothing"]),
    ],
)
async def test_a_note_of_nothing_collected_goes_when_a_page_after_a_wait_has_something(
    worker: Bench, answers: list[dict[str, int]], path: str, notes: list[str]
) -> None:
    command = command_of(
        """
  - step: s
    tool:
      - name: count
        kind: noop
        result: {page: "{{ (iter.page | default(0)) + 1 }}"}
        set: {iter.page: "{{ output.page }}"}
        output: {accumulate: {merge_path: PATH, manifest_as: counted}}
      - name: ask
        kind: playbook
        path: p
        output: {accumulate: {merge_path: n, manifest_as: gathered}}
        spec: {policy: {rules: [
          {when: "{{ iter.page < 2 }}", then: {do: jump, to: count}}, {else: {then: {do: continue}}}]}}
""".replace("PATH", path)
    )
    for answer in answers:
        command = resumed(command, await parked(worker, command), answer)
    *_, done = await worker.run(command)
    assert isinstance(done, CommandCompleted)
    assert done.notes == notes


async def test_a_retry_after_a_failed_child_is_the_next_attempt(worker: Bench) -> None:
    command = command_of("""
  - step: s
    tool:
      kind: playbook
      path: p
      spec: {policy: {rules: [{when: "{{ output.error.kind == 'child_failed' }}", then: {do: retry, attempts: 2}}]}}
""")  # fmt: skip
    error = ErrorObject(kind="child_failed", message="no luck")
    first = await parked(worker, command)
    second = await parked(worker, resumed(command, first, error=error))
    assert (first.wait.key, second.wait.key) == ("s_task/1/1", "s_task/1/2")
    last = (await worker.run(resumed(resumed(command, first, error=error), second, error=error)))[
        -1
    ]
    assert isinstance(last, CommandFailed)
    assert (last.error.message, last.error.task, last.error.attempt) == ("no luck", "s_task", 2)


async def test_what_a_task_asserts_holds_for_what_its_wait_brings(worker: Bench) -> None:
    command = command_of("""
  - {step: s, tool: {kind: playbook, path: p, assert: {returns: [wanted]}}}
""")
    fact = await parked(worker, command)
    failed = (await worker.run(resumed(command, fact, {"other": 1})))[-1]
    assert isinstance(failed, CommandFailed)
    assert (failed.error.kind, "wanted" in failed.error.message) == ("assertion", True)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (7, 7),
        ([1, 2], [1, 2]),
        (None, None),
        ({"status": "mine"}, {"status": "mine", "execution_id": CHILD}),
    ],
)
async def test_a_result_keeps_its_shape(worker: Bench, value: Any, shown: Any) -> None:
    command = command_of("\n  - {step: s, tool: {kind: playbook, path: p}}\n")
    fact = await parked(worker, command)
    found, _ = await completed(worker, resumed(command, fact, value))
    assert found == shown


async def test_an_item_waits_by_itself_and_keeps_its_names(worker: Bench) -> None:
    command = command_of("""
  - step: s
    loop: {in: "{{ x }}", iterator: who, spec: {mode: parallel}}
    tool:
      - {name: ask, kind: playbook, path: "p/{{ iter.who }}"}
      - {name: end, kind: noop, result: "{{ iter.who }}{{ loop_index }}"}
""", work=ItemWork(index=2, total=3, item="ada"))  # fmt: skip
    fact = await parked(worker, command)
    assert isinstance(fact.wait, ChildWait)
    assert fact.wait.path == "p/ada"
    value, _ = await completed(worker, resumed(command, fact, {}))
    assert value == "ada2"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ('path: ""', "path"),
        ("path: p, version: soon", "version"),
        ("path: p, payload: [1]", "payload"),
        ("path: p, wait: \"{{ 'perhaps' }}\"", "wait"),
    ],
)
async def test_a_wrong_field_is_the_tasks_error(worker: Bench, fields: str, named: str) -> None:
    command = command_of(f"\n  - {{step: s, tool: {{kind: playbook, {fields}}}}}\n")
    fact = (await worker.run(command))[-1]
    assert isinstance(fact, CommandFailed)
    assert (fact.error.kind, f"'{named}'" in fact.error.message) == ("validation", True)


async def test_inputs_too_large_for_an_event_are_a_payload(worker: Bench) -> None:
    command = command_of(
        "\n  - {step: s, tool: {kind: playbook, path: p, input: {t: \"{{ 'x' * 3000 }}\"}}}\n"
    )
    wait = (await parked(worker, command)).wait
    assert isinstance(wait, ChildWait)
    assert wait.workload == {}
    assert wait.workload_ref is not None
    assert codec.decode_json(await worker.payloads.read_payload(wait.workload_ref)) == {
        "t": "x" * 3000
    }


async def test_a_row_of_a_frame_cannot_wait_and_is_told_what_can(worker: Bench) -> None:
    command = command_of("\n  - {step: s, tool: {kind: playbook, path: p}}\n")
    place = PayloadOwner(tenant_id=command.tenant_id, organization_id=command.organization_id)
    clock = worker.lane._lane.fact_publisher.clock
    payloads = TenantPayloads(worker.payloads, place=place, cache=PayloadCache(bytes_max=0))
    hands = CommandServices(
        tools=worker.tools,
        payloads=payloads,
        keeper=ResultStore(payloads=payloads, mask=worker.mask),
        mask=worker.mask,
        clock=clock,
        worker_id="w",  # type: ignore[arg-type]  # any worker
        pacer=worker.lane._lane.pacer,
        journal=LogJournal(
            command,
            payloads=payloads,
            mask=worker.mask,
            clock=clock,
            worker_id="w",  # type: ignore[arg-type]  # any worker
        ),
    )
    around = CommandContext(
        command,
        workload={},
        ctx={},
        iterator=None,
        clock=clock,
        keyring=worker.tools.keyring,
    )
    row = PipelineUnit(
        site=around.build_unit_scope(unit="f", row_index=0),
        fixed={"iter": {}},
        iterators={},
        ctx={},
    )
    assert command.definition is not None
    block = compile_pipeline(command.definition, {})
    end = await Pipeline(block=block, unit=row, context=around, services=hands).run()
    assert end.error is not None
    assert (end.error.kind, "parallel" in end.error.message) == ("unsupported_tool", True)


async def held(worker: Bench, command: Command) -> tuple[CommandParked, MessageWait]:
    fact = await parked(worker, command)
    assert isinstance(fact.wait, MessageWait)
    return fact, fact.wait


def answered(command: Command, fact: CommandParked, value: Any, status: str = DELIVERED) -> Command:
    """The command as the planner sends it once a message has come, or its time is over."""
    sent = resumed(command, fact, value)
    assert sent.resume is not None
    resume = structs.replace(
        sent.resume,
        status=status,
        child_execution_id=None,
        result=sent.resume.result if status == DELIVERED else None,
    )
    return structs.replace(sent, resume=resume)


async def test_a_wait_says_who_may_end_it_and_how(worker: Bench) -> None:
    command = command_of("""
  - step: s
    tool: {kind: external, mode: approval, title: "T {{ ctx.n }}", assignees: "{{ 'ann' }}", options: [a, b], on_timeout: continue, timeout: 3d}
""", ctx={"n": 4})  # fmt: skip
    _, wait = await held(worker, command)
    assert wait.address == f"approval/{ids.derive_approval_id(command.command_id, 's_task/1/1')}"
    assert (wait.title, wait.assignees, wait.options) == ("T 4", ["ann"], ["a", "b"])
    assert (wait.timeout_s, wait.is_timeout_ok) == (259_200, True)


async def test_input_fills_what_the_task_leaves_open(worker: Bench) -> None:
    command = command_of("""
  - {step: s, tool: {kind: external, mode: signal, correlation_key: "k-{{ input.n }}", input: {n: 7, on_timeout: continue}}}
""")
    _, wait = await held(worker, command)
    assert (wait.address, wait.is_timeout_ok) == ("signal/k-7", True)


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ("input: {mode: signal, correlation_key: my-key}", "signal/my-key"),
        ("mode: signal, input: {n: 7, correlation_key: 'k-{{ ctx.n }}'}", "signal/k-4"),
        (
            "mode: null, correlation_key: null, input: {mode: signal, correlation_key: k}",
            "signal/k",
        ),
        ("mode: signal, correlation_key: own, input: {correlation_key: other}", "signal/own"),
        ("mode: signal, correlation_key: '{{ input.n }}', input: {n: 7}", "signal/7"),
    ],
)
async def test_the_key_of_a_signal_may_stand_under_input(
    worker: Bench, fields: str, address: str
) -> None:
    command = command_of(f"""
  - {{step: s, tool: {{kind: external, {fields}, submit: {{kind: noop, result: "{{{{ correlation.key }}}}"}}}}}}
""", ctx={"n": 4})  # fmt: skip
    fact, wait = await held(worker, command)
    assert wait.address == address
    value, _ = await completed(worker, answered(command, fact, {"n": 1}))
    assert f"signal/{value['submitted']}" == address


async def test_a_token_is_the_same_for_the_same_attempt_and_no_other(worker: Bench) -> None:
    step = "\n  - {step: s, tool: {kind: external}}\n"
    command = command_of(step)
    _, first = await held(worker, command)
    _, again = await held(worker, structs.replace(command, attempt=2))
    _, other = await held(worker, command_of(step))
    assert first.address == again.address != other.address
    assert first.address.startswith("callback/")


async def test_default_keys_of_items_differ(worker: Bench) -> None:
    step = """
  - {step: s, loop: {in: "{{ x }}", iterator: i, spec: {mode: parallel}}, tool: {kind: external, mode: signal}}
"""
    found = [
        (await held(worker, command_of(step, work=ItemWork(index=n, total=2, item=n))))[1]
        for n in range(2)
    ]
    assert found[0].correlation_key != found[1].correlation_key


async def test_a_message_stands_beside_what_was_submitted(worker: Bench) -> None:
    command = command_of("""
  - step: s
    tool: {kind: external, submit: {kind: noop, result: {job: "{{ correlation.key }}"}}, schema: {n: integer}}
""")
    fact, wait = await held(worker, command)
    value, _ = await completed(worker, answered(command, fact, {"n": 1}))
    assert value == {"n": 1, "submitted": {"job": wait.correlation_key}}
    failed = (await worker.run(answered(command, fact, {"n": True})))[-1]
    assert isinstance(failed, CommandFailed)
    assert failed.error.kind == "schema"


async def test_what_cannot_be_submitted_fails_the_attempt_and_a_rule_may_try_again(
    worker: Bench,
) -> None:
    command = command_of("""
  - step: s
    tool:
      kind: external
      submit: {kind: python, code: "assert attempt > 1; return attempt", input: {attempt: "{{ _attempt }}"}}
      spec: {policy: {rules: [{when: "{{ output.error.kind == 'assertion' }}", then: {do: retry, attempts: 2}}]}}
""")
    _, wait = await held(worker, command)
    assert wait.key == "s_task/1/2"


async def test_a_stopped_wait_runs_its_cancel_task_and_reports_nothing_else(worker: Bench) -> None:
    command = command_of("""
  - step: s
    tool: {kind: external, submit: {kind: noop, result: {job: 7}}, cancel: {kind: noop, result: "{{ submitted.job }}"}}
""")
    fact, wait = await held(worker, command)
    assert wait.cancels
    facts = await worker.run(answered(command, fact, None, STOPPED))
    assert [type(item) for item in facts] == [CommandStarted, CommandStopped]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ("mode: \"{{ 'letter' }}\"", "mode"),
        ("on_timeout: \"{{ 'wait' }}\"", "on_timeout"),
        ("schema: {n: whole}", "schema"),
        ('correlation_key: ""', "correlation_key"),
        ('correlation_key: "{{ [1] }}"', "correlation_key"),
        ('input: {correlation_key: ""}', "correlation_key"),
    ],
)
async def test_a_wrong_field_of_a_wait_is_the_tasks_error(
    worker: Bench, fields: str, named: str
) -> None:
    command = command_of(f"\n  - {{step: s, tool: {{kind: external, {fields}}}}}\n")
    fact = (await worker.run(command))[-1]
    assert isinstance(fact, CommandFailed)
    assert (fact.error.kind, f"'{named}'" in fact.error.message) == ("validation", True)
