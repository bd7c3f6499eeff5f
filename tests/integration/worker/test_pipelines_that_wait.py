# ruff: noqa: E501 - a playbook reads best with one task to a line
"""How a worker lets a pipeline go that waits for time, and how another one goes on with it."""

from typing import Any

import pytest
from msgspec import structs
from tests.support.scripted import Script, says
from tests.support.working import ORGANIZATION, TENANT, Bench, command_of

from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.waits import ELAPSED, Resume, TimeWait
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed, CommandParked
from noetl_worker.pipeline import checkpoints

PAGES = """
  - step: pull
    tool: {{kind: http, url: "{url}/rows", params: {{page: 1}}}}
    retry:
      - when: "{{{{ response.more }}}}"
        then:
          delay: {delay}
          next_call: {{params: {{page: "{{{{ response.page + 1 }}}}"}}}}
          collect: {{strategy: append, path: rows}}
"""


def page(number: int, *, of: int, width: int = 1) -> Any:
    rows = [{"n": number, "text": "x" * width}]
    return says({"page": number, "more": number < of, "rows": rows})


async def waits(worker: Bench, command: Command) -> tuple[CommandParked, TimeWait]:
    fact = (await worker.run(command))[-1]
    assert isinstance(fact, CommandParked), fact
    assert isinstance(fact.wait, TimeWait)
    return fact, fact.wait


def elapsed(command: Command, fact: CommandParked) -> Command:
    """The command as the planner sends it once the time has passed."""
    resume = Resume(key=fact.wait.key, ref=fact.resume_ref, status=ELAPSED)
    return structs.replace(command, attempt=command.attempt + 1, resume=resume)


async def completed(worker: Bench, command: Command) -> CommandCompleted:
    fact = (await worker.run(command))[-1]
    assert isinstance(fact, CommandCompleted), fact
    return fact


@pytest.mark.parametrize(
    ("delay", "seconds"), [("2h", 7200), ("1d", 86_400), ("366d", 366 * 86_400)]
)
async def test_a_retry_waits_without_its_worker_and_its_attempts_go_on(
    worker: Bench, server: Script, delay: str, seconds: int
) -> None:
    server.answers(says({}, status=503), says({}, status=503), says({"n": 1}))
    command = command_of(f"""
  - step: ask
    tool:
      kind: http
      url: "{server.url}/x"
      spec: {{policy: {{rules: [{{when: "{{{{ output.status == 'error' }}}}", then: {{do: retry, attempts: 3, delay: {delay}}}}}]}}}}
""")
    for tries in (1, 2):
        fact, wait = await waits(worker, command)
        assert (wait.timeout_s, wait.reason) == (seconds, "retry")
        assert len(server.seen) == tries
        command = elapsed(command, fact)
    end = await completed(worker, command)
    assert len(server.seen) == 3
    assert (await worker.value(end.result))["body"] == {"n": 1}


async def test_tries_that_are_used_up_end_with_the_error_of_the_last(
    worker: Bench, server: Script
) -> None:
    server.answers(says({}, status=503), says({}, status=500))
    command = command_of(f"""
  - step: ask
    tool: {{kind: http, url: "{server.url}/x"}}
    retry: {{max_attempts: 2, delay: 1h}}
""")
    fact, _ = await waits(worker, command)
    end = (await worker.run(elapsed(command, fact)))[-1]
    assert isinstance(end, CommandFailed)
    assert (end.error.code, end.error.attempt) == ("HTTP_500", 2)


async def test_a_task_that_rests_keeps_what_the_pipeline_knows(worker: Bench) -> None:
    command = command_of("""
  - step: s
    tool:
      - {name: first, kind: noop, result: {n: 1}, set: {ctx.seen: 1, iter.mark: m, kept: "{{ output.n }}"}}
      - {name: rest, kind: noop, result: {m: 2}, spec: {policy: {rules: [{else: {then: {do: continue, delay: 2h}}}]}}}
      - {name: last, kind: noop, result: ["{{ first.n }}", "{{ _prev.m }}", "{{ iter.mark }}", "{{ kept }}", "{{ ctx.seen }}", "{{ output.m }}"]}
""")  # fmt: skip
    fact, wait = await waits(worker, command)
    assert (wait.reason, wait.task, wait.timeout_s) == ("continue", "rest", 7200)
    end = await completed(worker, elapsed(command, fact))
    assert await worker.value(end.result) == [1, 2, "m", 1, 1, 2]
    assert end.patch == {"seen": 1}


async def test_a_step_may_end_with_a_rest(worker: Bench) -> None:
    command = command_of("""
  - {step: s, tool: {kind: noop, result: 7, spec: {policy: {rules: [{else: {then: {do: continue, delay: 1d}}}]}}}}
""")
    fact, _ = await waits(worker, command)
    end = await completed(worker, elapsed(command, fact))
    assert await worker.value(end.result) == 7


async def test_a_short_wait_stays_with_its_worker(worker: Bench, server: Script) -> None:
    server.answers(page(1, of=2), page(2, of=2))
    end = await completed(worker, command_of(PAGES.format(url=server.url, delay=0.01)))
    assert [row["n"] for row in (await worker.value(end.result))["data"]] == [1, 2]


async def test_a_repeat_goes_on_at_the_next_page_and_keeps_what_it_read_once(
    worker: Bench, server: Script
) -> None:
    server.answers(*[page(number, of=4, width=5000) for number in range(1, 5)])
    command = command_of(PAGES.format(url=server.url, delay="1h"))
    sizes = []
    for pages in (1, 2, 3):
        fact, _ = await waits(worker, command)
        assert len(server.seen) == pages
        sizes.append(fact.resume_ref.payload_bytes)
        command = elapsed(command, fact)
    end = await completed(worker, command)
    assert [row["n"] for row in (await worker.value(end.result))["data"]] == [1, 2, 3, 4]
    # Each page is a chunk of its own: what is kept at a wait does not grow by a page each time.
    assert sizes[2] - sizes[1] < 2000


async def test_a_note_survives_a_wait(worker: Bench, server: Script) -> None:
    server.answers(page(1, of=9))
    command = command_of(f"""
  - step: pull
    tool:
      - {{name: get, kind: http, url: "{server.url}/rows", set: {{iter.calls: 1}}}}
      - name: more
        kind: noop
        spec: {{policy: {{rules: [{{when: "{{{{ get.more and iter.calls < 1 }}}}", then: {{do: jump, to: get, on_bound: stop}}}}, {{else: {{then: {{do: continue, delay: 1h}}}}}}]}}}}
      - {{name: last, kind: noop, result: 1}}
""")
    fact, _ = await waits(worker, command)
    assert (await completed(worker, elapsed(command, fact))).notes == ["repeat_bound"]


@pytest.mark.parametrize("lost_at", [26, 49, 50, 51, 75])
async def test_an_attempt_after_a_lost_one_reads_only_what_was_read_since_its_checkpoint(
    worker: Bench, server: Script, lost_at: int
) -> None:
    pages = [page(number, of=80) for number in range(1, 81)]
    # The lost attempt: its next page is an error that no rule awaits, after which its command is
    # sent again as if nobody had heard of it.
    server.answers(*pages[:lost_at], says({}, status=500))
    command = command_of(PAGES.format(url=server.url, delay=0))
    assert isinstance((await worker.run(command))[-1], CommandFailed)
    since = lost_at // checkpoints.PAGES * checkpoints.PAGES
    server.answers(*pages[since:])
    end = await completed(worker, structs.replace(command, attempt=2))
    numbers = [row["n"] for row in (await worker.value(end.result))["data"]]
    assert numbers == list(range(1, 81))
    assert len(server.seen) == lost_at + 1 + 80 - since


async def test_a_checkpoint_that_is_older_than_the_last_wait_is_left_alone(
    worker: Bench, server: Script
) -> None:
    pages = [page(number, of=60) for number in range(1, 61)]
    delay = '"{{ 3600 if iter.calls == 30 else 0 }}"'
    command = command_of(PAGES.format(url=server.url, delay=delay))
    server.answers(*pages[:30])
    fact, _ = await waits(worker, command)
    server.answers(*pages[30:])
    resumed = elapsed(command, fact)
    end = await completed(worker, structs.replace(resumed, attempt=resumed.attempt + 1))
    assert len((await worker.value(end.result))["data"]) == 60
    assert len(server.seen) == 60


async def test_ten_pages_write_no_checkpoint(worker: Bench, server: Script) -> None:
    server.answers(*[page(number, of=10) for number in range(1, 11)])
    command = command_of(PAGES.format(url=server.url, delay=0))
    await completed(worker, command)
    again = structs.replace(command, attempt=2)
    name = checkpoints.build_checkpoint_name(again, attempt=1, number=1)
    assert (
        await worker.payloads.find_named(name, tenant_id=TENANT, organization_id=ORGANIZATION)
        is None
    )
