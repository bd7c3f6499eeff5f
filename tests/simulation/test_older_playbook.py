"""A playbook in older spelling runs from its registration to its end, all in one process."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import eventually
from tests.support.scripted import Script, says, script

from noetl_cli.local import system
from noetl_contracts.events import get_event_type
from noetl_planner.api.catalog import playbooks
from noetl_planner.api.executions import start_requests
from noetl_planner.api.executions.start_requests import ExecuteBody
from noetl_playbook.source.problems import Level
from noetl_replay.fold import fold_event
from noetl_replay.state import ExecutionState, build_empty_state

pytestmark = pytest.mark.timeout(120)

PATIENCE_S = 60.0
ENDS = {"playbook.completed", "playbook.failed"}
PLAYBOOK = """\
apiVersion: noetl.io/v1
kind: Playbook
metadata: {name: older, path: simulation/older}
workload: {url: URL}
vars: {greeting: "hello {{ workload.url | length > 0 }}"}
workbook:
  - name: shout
    tool: {kind: noop, result: {loud: "{{ input.text | upper }}"}, args: {text: null}}
workflow:
  - name: begin
    type: noop
    next: [pull]
  - step: pull
    tool: http
    endpoint: "{{ workload.url }}/items"
    params: {page: 1}
    retry:
      - {retry_on: [http_5xx], max_attempts: 3, backoff: 0.01}
      - when: response.more
        then:
          max_attempts: 2
          on_bound: stop
          next_call: {params: {page: "{{ attempt + 1 }}"}}
          collect: {strategy: append, path: rows}
          sink: {tool: http, method: POST, url: "{{ workload.url }}/sink", json: "{{ input.data }}"}
    case:
      - when: "{{ event.name == 'call.done' }}"
        then:
          set: {pages: "{{ response.page }}"}
          next: [{step: tell, args: {rows: "{{ pull.data }}"}}]
    next: end
  - step: tell
    when: "{{ vars.pages == 2 }}"
    loop: {collection: "{{ args.rows }}", element: row, mode: async}
    tool: workbook
    name: shout
    args: {text: "{{ vars.greeting }} {{ row.n }}"}
    next: end
  - step: end
    tool: {kind: noop}
    set_ctx: {told: "{{ tell.data | map(attribute='loud') | list }}"}
"""


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script() as found:
        yield found


def page(number: int) -> Any:
    return says({"page": number, "more": True, "rows": [{"n": number}]})


async def test_an_older_playbook_runs_to_its_end(tmp_path: Path, server: Script) -> None:
    server.answers(says(status=503), page(1), says({}), page(2), says({}))
    configs = system.load_settings({}, tmp_path)
    async with system.open_system(configs) as opened, asyncio.TaskGroup() as tasks:
        tasks.create_task(system.run_services(opened))
        try:
            await playbooks.register_text(
                opened.services, PLAYBOOK.replace("URL", server.url), level=Level.TOLERANT
            )
            body = ExecuteBody(path="simulation/older")
            execution_id = (
                await start_requests.execute_playbook(opened.services, body, None)
            ).execution_id

            async def has_ended() -> ExecutionState | None:
                read = opened.adapters.ledger.read_events
                events = await read(execution_id, after_version=0, events_max=1000)
                if not ENDS & {get_event_type(item.event) for item in events}:
                    return None
                first = events[0]
                state = build_empty_state(execution_id, first.tenant_id, first.organization_id)
                for event in events:
                    state = fold_event(state, event)
                return state

            state = await eventually(has_ended, timeout_s=PATIENCE_S)
        finally:
            opened.process.stop.set()
    assert state is not None
    assert state.failure is None
    assert state.ctx["told"] == ["HELLO TRUE 1", "HELLO TRUE 2"]
    assert state.ctx["pages"] == 2
    # The bound of the repeat is a note.
    assert state.warnings == 1
    asked = [(seen.method, seen.query.get("page")) for seen in server.seen]
    assert asked == [("GET", "1"), ("GET", "1"), ("POST", None), ("GET", "2"), ("POST", None)]
    sent = [json.loads(seen.body) for seen in server.seen if seen.method == "POST"]
    assert sent == [[{"n": 1}], [{"n": 2}]]
