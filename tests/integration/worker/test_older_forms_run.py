# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Older playbooks run as what they became: repeats, retries, sinks and cases over HTTP."""

import json
from typing import Any

import pytest
from tests.support.scripted import ReceivedRequest, Script, says
from tests.support.working import Bench, command_of

from noetl_contracts.commands.command_work import ItemWork
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed


async def completed(worker: Bench, step: str, **about: Any) -> CommandCompleted:
    end = (await worker.run(command_of(step, **about)))[-1]
    assert isinstance(end, CommandCompleted), end
    return end


async def failed(worker: Bench, step: str) -> CommandFailed:
    end = (await worker.run(command_of(step)))[-1]
    assert isinstance(end, CommandFailed), end
    return end


def page(number: int, *, more: bool) -> Any:
    return says({"page": number, "more": more, "rows": [{"n": number}, {"n": number * 10}]})


def pages(seen: list[ReceivedRequest]) -> list[str | None]:
    return [item.query.get("page") for item in seen]


REPEAT = """
  - step: pull
    tool: http
    url: "{url}/rows"
    params: {{page: 1, size: 2}}
    retry:
      - when: "{{{{ response.more }}}}"
        then:
          max_attempts: {bound}
          next_call: {{params: {{page: "{{{{ response.page + 1 }}}}"}}}}
          collect: {{strategy: append, path: rows}}
"""


async def test_a_repeat_follows_the_pages_and_collects_them(worker: Bench, server: Script) -> None:
    server.answers(page(1, more=True), page(2, more=False))
    end = await completed(worker, REPEAT.format(url=server.url, bound=50))
    value = await worker.value(end.result)
    assert pages(server.seen) == ["1", "2"]
    assert [item.query["size"] for item in server.seen] == ["2", "2"]
    assert value["data"] == [{"n": 1}, {"n": 10}, {"n": 2}, {"n": 20}]
    assert value["pull_task"]["body"]["page"] == 2
    assert end.notes == []


async def test_a_repeat_that_reaches_its_bound_fails_and_says_what_was_read(
    worker: Bench, server: Script
) -> None:
    server.answers(page(1, more=True), page(2, more=True), page(3, more=True))
    end = (await worker.run(command_of(REPEAT.format(url=server.url, bound=2))))[-1]
    assert isinstance(end, CommandFailed), end
    assert pages(server.seen) == ["1", "2"]
    error = end.error
    assert (error.kind, error.code, error.retryable) == ("limit", "repeat_bound", False)
    assert error.details == {"setting": "max_pages", "bound": 2, "pages": 2, "rows": 4}
    assert "max_pages is 2" in error.message
    assert "on_bound: stop" in error.message


@pytest.mark.parametrize(
    "repeat",
    [
        (
            'retry: [{when: "{{ response.more }}", then: {max_pages: 2, on_bound: stop, collect: rows, '
            'next_call: {params: {page: "{{ response.page + 1 }}"}}}}]'
        ),
        (
            'pagination: {continue_while: "{{ response.data.more }}", max_pages: 2, on_bound: stop, '
            'merge_path: rows, next_page: {params: {page: "{{ attempt + 1 }}"}}}'
        ),
        (
            'pagination: {continue_while: "{{ response.data.more }}", max_iterations: 2, '
            "on_bound: stop, merge_path: rows}"
        ),
    ],
)
async def test_a_repeat_that_may_stop_at_its_bound_keeps_the_part_with_a_note(
    worker: Bench, server: Script, repeat: str
) -> None:
    server.answers(page(1, more=True), page(2, more=True), page(3, more=True))
    step = f"""
  - step: pull
    tool: {{kind: http, url: "{server.url}/rows"}}
    {repeat}
"""
    end = await completed(worker, step)
    assert len(server.seen) == 2
    assert len((await worker.value(end.result))["data"]) == 4
    assert end.notes == ["repeat_bound"]
    assert end.result.context["notes"] == ["repeat_bound"]


async def test_a_repeat_without_a_bound_of_its_own_reads_on_past_a_hundred_pages(
    worker: Bench, server: Script
) -> None:
    server.answers(*[page(number, more=number < 150) for number in range(1, 151)])
    step = f"""
  - step: pull
    tool: {{kind: http, url: "{server.url}/rows"}}
    pagination: {{continue_while: "{{{{ response.data.more }}}}", merge_path: rows}}
"""
    end = await completed(worker, step)
    assert len(server.seen) == 150
    assert len((await worker.value(end.result))["data"]) == 300
    assert end.notes == []


async def test_a_repeat_fails_that_collects_more_bytes_than_it_may(
    worker: Bench, server: Script
) -> None:
    server.answers(*[page(number, more=True) for number in range(1, 9)])
    step = f"""
  - step: pull
    tool: {{kind: http, url: "{server.url}/rows"}}
    pagination: {{continue_while: "{{{{ response.data.more }}}}", merge_path: rows, max_bytes: 50}}
"""
    end = (await worker.run(command_of(step)))[-1]
    assert isinstance(end, CommandFailed), end
    assert (end.error.kind, end.error.code) == ("limit", "repeat_bound")
    assert "max_bytes is 50" in end.error.message
    assert len(server.seen) < 8


async def test_a_repeat_that_ends_at_its_bound_by_itself_has_no_note(
    worker: Bench, server: Script
) -> None:
    server.answers(page(1, more=True), page(2, more=False))
    end = await completed(worker, REPEAT.format(url=server.url, bound=2))
    assert pages(server.seen) == ["1", "2"]
    assert end.notes == []


async def test_each_item_of_a_loop_repeats_for_itself(worker: Bench, server: Script) -> None:
    step = f"""
  - step: pull
    tool: {{kind: http, url: "{{{{ feed.url }}}}"}}
    loop: {{collection: "{{{{ workload.feeds }}}}", element: feed, mode: async}}
    pagination: {{continue_while: "{{{{ response.data.more }}}}", next_page: {{params: {{page: "{{{{ attempt + 1 }}}}"}}}}, merge_path: rows}}
    sink: {{tool: http, method: POST, url: "{server.url}/sink", json: "{{{{ input.data }}}}"}}
"""
    server.answers(page(1, more=True), says(), page(2, more=False), says())
    item = ItemWork(index=3, item={"url": f"{server.url}/f"}, total=5)
    end = await completed(worker, step, work=item)
    assert pages(server.seen) == [None, None, "2", None]
    assert [json.loads(entry.body) for entry in server.seen if entry.method == "POST"] == [
        [{"n": 1}, {"n": 10}],
        [{"n": 2}, {"n": 20}],
    ]
    assert [row["n"] for row in (await worker.value(end.result))["data"]] == [1, 10, 2, 20]


@pytest.mark.parametrize(
    ("retry", "tries"),
    [
        ("3", 3),
        ("{max_attempts: 2, initial_delay: 0.01, backoff_multiplier: 2, max_delay: 0.02}", 2),
        ("{when: 'error.status_code == 503', max_attempts: 4, delay_seconds: 0.01}", 4),
        ("{when: 'response.status_code == 500', max_attempts: 4}", 1),
        ("{retry_on: [http_5xx], max_attempts: 2}", 2),
        ("{retry_on: [connection_error], max_attempts: 4}", 1),
        ("{retry_on: exception, max_attempts: 2, backoff: 0.01}", 2),
        ("{retry_on_status: [503, 429], max_attempts: 3, backoff_seconds: 0.01}", 3),
        ("{retry_on_status: [429], max_attempts: 3}", 1),
        (
            "[{retry_on: [timeout], max_attempts: 9}, {when: '{{ error.code == \"HTTP_503\" }}', max_attempts: 2}]",
            2,
        ),
    ],
)
async def test_an_error_retry_tries_as_often_as_it_says(
    worker: Bench, server: Script, retry: str, tries: int
) -> None:
    server.answers(says({"why": "busy"}, status=503))
    step = f"\n  - step: s\n    tool: {{kind: http, url: '{server.url}', retry: {retry}}}\n"
    end = await failed(worker, step)
    assert (len(server.seen), end.error.code) == (tries, "HTTP_503")


async def test_an_error_retry_lets_a_later_success_pass(worker: Bench, server: Script) -> None:
    server.answers(says(status=503), page(1, more=True), page(2, more=False))
    step = f"""
  - step: s
    tool: {{kind: http, url: "{server.url}"}}
    retry:
      - {{retry_on: [http_5xx], max_attempts: 2, backoff: 0.01}}
      - {{when: "{{{{ result.more }}}}", next_call: {{url: "{server.url}/{{{{ result.page + 1 }}}}"}}, collect: {{path: rows, into: all}}}}
"""
    end = await completed(worker, step)
    assert [item.path for item in server.seen] == ["/", "/", "/2"]
    assert len((await worker.value(end.result))["all"]) == 4


async def test_a_sink_that_fails_fails_the_step(worker: Bench, server: Script) -> None:
    server.answers(page(1, more=False), says(status=500), says(status=500))
    step = f"""
  - step: s
    tool: {{kind: http, url: "{server.url}"}}
    retry: {{max_attempts: 2, backoff: 0.01}}
    sink: {{tool: http, method: POST, url: "{server.url}/sink", json: {{all: "{{{{ result.rows }}}}"}}}}
"""
    end = await failed(worker, step)
    assert [item.path for item in server.seen] == ["/", "/sink", "/sink"]
    assert (end.error.task, end.error.code) == ("s_sink", "HTTP_500")


CASE = """
  - step: s
    tool: {{kind: http, url: "{url}"}}
    case:
      - when: "{{{{ event.name == 'call.done' and response.page > 1 }}}}"
        then:
          - {{set: {{ctx.page: "{{{{ response.page }}}}"}}}}
          - {{call: {{name: tell, kind: http, url: "{url}/told"}}}}
        else: {{set: {{ctx.small: true}}}}
      - {{when: "{{{{ response.page == 3 }}}}", then: {{fail: "page {{{{ response.page }}}} is bad"}}}}
"""


async def test_a_case_does_what_its_condition_says(worker: Bench, server: Script) -> None:
    server.answers(page(2, more=False), says({}))
    end = await completed(worker, CASE.format(url=server.url))
    assert end.patch == {"page": 2}
    assert [item.path for item in server.seen] == ["/", "/told"]


async def test_a_case_goes_past_a_call_whose_condition_does_not_hold(
    worker: Bench, server: Script
) -> None:
    server.answers(page(1, more=False))
    end = await completed(worker, CASE.format(url=server.url))
    assert end.patch == {"small": True}
    assert [item.path for item in server.seen] == ["/"]


async def test_a_case_fails_the_step_with_its_message(worker: Bench, server: Script) -> None:
    server.answers(page(3, more=False), says({}))
    end = await failed(worker, CASE.format(url=server.url))
    assert (end.error.kind, end.error.message) == ("policy", "page 3 is bad")


async def test_older_names_still_mean_what_they_did(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      - {name: a, kind: noop, result: {x: 1}, set: {iter.seen: "{{ output.x }}"}}
      - name: b
        kind: noop
        args: {k: 5}
        result: ["{{ response.x }}", "{{ result.x }}", "{{ error is defined }}", "{{ args.k }}", "{{ args.c }}", "{{ vars.c }}", "{{ payload.w }}"]
"""
    end = await completed(worker, step, ctx={"c": 7}, workload={"w": 8})
    assert await worker.value(end.result) == [1, 1, False, 5, 7, 7, 8]
