"""What a killed worker held is issued again long before its lease has passed, and counted once."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.support.asking import http
from tests.support.parity import assert_parity
from tests.support.servers import wait_until
from tests.support.stack import Stack, running_stack

from noetl_reaper.domain import WORKER_LOST

pytestmark = pytest.mark.timeout(240)

ITEMS = 120
# A run that had to wait for it would be over its time.
LEASE_S = 600
SETTINGS = (
    *("--workers", "2"),
    *("--set", f"MESSAGING_LEASE_S={LEASE_S}"),
    *("--set", f"WORKER_LEASE_S={LEASE_S}"),
    *("--set", f"PLANNER_COMMAND_LEASE_S={LEASE_S}"),
    *("--set", f"REAPER_LEASE_S={LEASE_S}"),
    *("--set", "WORKER_SHELL_ALLOWED=true"),
)
LOOP = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: slow_items, path: slow_items}}
workflow:
  - step: each
    loop:
      in: "{{{{ range({ITEMS}) | list }}}}"
      iterator: i
      spec: {{mode: parallel, max_in_flight: 16}}
    tool: {{kind: shell, cmds: "sleep 0.3; echo {{{{ iter.i }}}}"}}
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("killed") / "stack", *SETTINGS) as running:
        yield running


def list_events(stack: Stack, execution_id: str) -> list[dict[str, Any]]:
    url = f"{stack.url('api')}/api/executions/{execution_id}/events"
    answer = http.get(url, params={"after": 0, "limit": 1000}, timeout=60)
    found: list[dict[str, Any]] = msgspec.json.decode(answer.raise_for_status().content)["events"]
    return found


def read_status(stack: Stack, execution_id: str) -> str:
    answer = http.get(f"{stack.url('api')}/api/executions/{execution_id}", timeout=60)
    return str(answer.raise_for_status().json()["status"])


def run_and_hurt(stack: Stack, *, key: str, both: bool) -> list[dict[str, Any]]:
    url = f"{stack.url('api')}/api/catalog/register"
    http.post(url, json={"content": LOOP}, timeout=30).raise_for_status()
    execution_id = stack.execute("slow_items", key=key)
    wait_until(
        lambda: sum(e["event_type"] == "call.done" for e in list_events(stack, execution_id)) > 20,
        timeout_s=60,
        what="some items have ended",
    )
    killed_at = datetime.now(UTC)
    for worker in ("worker-1", "worker-2")[: 2 if both else 1]:
        stack.kill(worker, wait=False)
    wait_until(
        lambda: read_status(stack, execution_id) == "COMPLETED",
        timeout_s=120,
        what="the loop has ended",
    )
    events = list_events(stack, execution_id)
    assert_parity(stack, execution_id)
    assert any(datetime.fromisoformat(event["created_at"]) > killed_at for event in events)
    return events


@pytest.mark.parametrize("both", [False, True], ids=["one", "all"])
def test_items_of_a_killed_worker_do_not_wait_for_their_lease(stack: Stack, *, both: bool) -> None:
    events = run_and_hurt(stack, key=f"killed-{both}", both=both)
    reissued = [event for event in events if event["event_type"] == "command.reissued"]
    assert reissued, "the killed worker held something"
    assert {event["context"]["reason"] for event in reissued} == {WORKER_LOST}
    done = [
        event["context"]["item_index"] for event in events if event["event_type"] == "call.done"
    ]
    assert sorted(done) == list(range(ITEMS))
