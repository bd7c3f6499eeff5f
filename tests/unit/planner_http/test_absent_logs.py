"""Why there are no lines is told: a step that is not there, not begun, or that writes none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld, beginning, ending
from tests.support.storage import an_execution

from noetl_planner.api.app import create_app

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: demo/hello}
workflow:
  - {step: start, tool: {kind: python, code: 'print(1)'}, next: later}
  - {step: later, tool: {kind: python, code: 'print(1)'}, next: quiet}
  - {step: quiet, tool: {kind: noop}}
"""


@asynccontextmanager
async def logs_of(
    *, has_ended: bool, is_kept: bool = True
) -> AsyncIterator[tuple[AsyncTestClient[Any], str]]:
    world = ApiWorld()
    execution_id = an_execution()
    async with AsyncTestClient(create_app(world.services())) as api:
        if is_kept:
            answer = await api.post(
                "/api/catalog/register", content=PLAYBOOK, headers={"Content-Type": "text/yaml"}
            )
            assert answer.is_success, answer.text
        await world.append(execution_id, [*beginning(), *(ending() if has_ended else [])])
        await world.project(execution_id)
        yield api, f"/api/executions/{execution_id}/logs"


@pytest.mark.parametrize(
    ("step", "running", "over"),
    [
        (None, "no task has written anything so far", "no task wrote anything"),
        ("start", "step 'start' has written nothing so far", "step 'start' wrote nothing"),
        ("later", "step 'later' has not begun", "step 'later' did not run"),
        (
            "quiet",
            "step 'quiet' has not begun: tasks of kind noop write no lines",
            "step 'quiet' did not run: tasks of kind noop write no lines",
        ),
    ],
)
async def test_a_page_without_lines_says_why(step: str | None, running: str, over: str) -> None:
    for has_ended, note in ((False, running), (True, over)):
        async with logs_of(has_ended=has_ended) as (api, place):
            answer = await api.get(place, params={} if step is None else {"step": step})
        assert (answer.status_code, answer.json()["lines"]) == (200, [])
        assert answer.json()["note"] == note


@pytest.mark.parametrize("place", ["", "/stream"])
async def test_a_step_that_there_is_not_is_refused_with_the_nearest(place: str) -> None:
    async with logs_of(has_ended=False) as (api, logs):
        near = await api.get(f"{logs}{place}", params={"step": "latr"})
        far = await api.get(f"{logs}{place}", params={"step": "else"})
    assert (near.status_code, near.json()["hint"]) == (404, "did you mean 'later'?")
    assert "has no step 'latr'" in near.json()["detail"]
    assert (far.status_code, far.json()["hint"]) == (404, "its steps are start, later, quiet")


async def test_of_a_playbook_that_is_not_kept_any_step_may_be_asked_for() -> None:
    async with logs_of(has_ended=True, is_kept=False) as (api, logs):
        answer = await api.get(logs, params={"step": "latr"})
    assert answer.json()["note"] == "step 'latr' did not run"
