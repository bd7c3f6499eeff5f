# ruff: noqa: E501 - a playbook reads best with one task to a line
"""What a worker says that its tasks did: attempts, rows, requests, and nothing secret."""

from tests.support.scripted import Script, says
from tests.support.working import Bench, command_of

from noetl_contracts.commands.task_metrics import TaskMetrics
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed, Fact

SECRET = "s3cr3t-of-the-service"  # noqa: S105 - no secret of anyone


def tasks_of(facts: list[Fact]) -> dict[str, TaskMetrics]:
    end = facts[-1]
    assert isinstance(end, CommandCompleted | CommandFailed), end
    return end.tasks


async def test_each_try_of_a_request_is_counted_and_the_last_is_named(
    worker: Bench, server: Script
) -> None:
    server.answers(says({"no": 1}, status=503), says({"rows": [1, 2]}))
    step = f"""
  - step: s
    tool:
      - name: fetch
        kind: http
        method: POST
        url: "{server.url}/rows?page=1"
        body: "12345"
        spec: {{policy: {{rules: [{{when: "{{{{ output.status == 'error' }}}}", then: {{do: retry, attempts: 3, delay: 0}}}}]}}}}
      - {{name: shape, kind: noop, result: 1}}
"""
    (name,) = tasks = tasks_of(await worker.run(command_of(step)))
    assert name == "fetch"
    fetch = tasks["fetch"]
    assert (fetch.attempts, fetch.failed_attempts, fetch.requests) == (2, 1, 2)
    assert fetch.bytes_out == 2 * len(server.seen[0].body) > 0
    assert fetch.bytes_in == len('{"no": 1}') + len('{"rows": [1, 2]}')
    assert fetch.last_request is not None
    assert fetch.last_request.url == f"{server.url}/rows?page=1"
    assert (fetch.last_request.method, fetch.last_request.status) == ("POST", 200)


async def test_a_request_that_nobody_answers_has_no_status(worker: Bench) -> None:
    step = """
  - step: s
    tool: {kind: http, url: "http://127.0.0.1:9/none", timeout: 5}
"""
    (fetch,) = tasks_of(await worker.run(command_of(step))).values()
    assert (fetch.attempts, fetch.failed_attempts) == (1, 1)
    assert fetch.last_request is not None
    assert fetch.last_request.status is None


async def test_rows_of_databases_are_counted_and_those_of_code_are_not_guessed(
    worker: Bench,
) -> None:
    step = """
  - step: s
    tool:
      - {name: read, kind: duckdb, database: ":memory:", query: "select * from range(7)"}
      - {name: code, kind: python, code: "result = {'row_count': 99}"}
"""
    tasks = tasks_of(await worker.run(command_of(step)))
    assert tasks["read"].rows_out == 7
    assert tasks["code"].rows_out is None
    assert tasks["code"].attempts == 1


async def test_a_secret_in_an_address_is_masked(worker: Bench, server: Script) -> None:
    server.answers(says({}))
    worker.mask.learn_secrets({"token": SECRET})
    step = f"""
  - step: s
    tool: {{kind: http, url: "{server.url}/rows?key={SECRET}&page=1"}}
"""
    (fetch,) = tasks_of(await worker.run(command_of(step))).values()
    assert server.seen[0].query["key"] == SECRET
    assert fetch.last_request is not None
    assert fetch.last_request.url == f"{server.url}/rows?key=***&page=1"
