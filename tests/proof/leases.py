"""Frames that last longer than their lease: with heartbeats, and in a worker that sleeps past it."""

import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.proof import running
from tests.support.asking import http
from tests.support.parity import assert_parity
from tests.support.servers import wait_until
from tests.support.stack import Stack, running_stack

LEASE_S = 5
# What the broker, the reaper and the planner may take beside the lease.
SLACK_S = 5.0
ROWS, BODY_S = 4, 15
PLAYBOOK = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: leases, path: proof/leases}}
workflow:
  - step: each
    loop:
      in: "{{{{ {ROWS} }}}}"
      iterator: rows
      spec: {{mode: chunked, chunk_size: 2, max_in_flight: 2, frame: {{process: frame}}}}
    tool: {{kind: python, input: {{rows: "{{{{ iter.rows }}}}"}}, code: "import time; time.sleep({BODY_S}); return sum(rows)"}}
    set: {{ctx.sums: "{{{{ each.results }}}}"}}
"""
SETTINGS = (
    *("--workers", "2", "--no-s3"),
    *("--set", f"MESSAGING_LEASE_S={LEASE_S}"),
    *("--set", f"WORKER_LEASE_S={LEASE_S}"),
    *("--set", f"PLANNER_COMMAND_LEASE_S={LEASE_S}"),
    *("--set", "PLANNER_COMMAND_HEARTBEAT_S=1"),
    # A frame each: with one worker asleep the other is to have both.
    *("--set", "WORKER_FETCH_MESSAGES_MAX=1"),
)
REFUSED = ("frame.commit_rejected", "command.rejected")


def prove(folder: Path) -> dict[str, Any]:
    """Run the loop once in peace, and once with the worker of a frame asleep for three leases."""
    with running_stack(folder / "stack", *SETTINGS) as stack:
        path = running.register(stack, PLAYBOOK)
        calm = running.run(stack, path)
        counted = Counter(event["event_type"] for event in history(stack, calm.execution_id))
        assert counted["frame.abandoned"] == 0, counted
        slept = _asleep(stack, path)
    assert calm.variables == {"sums": [1, 5]}, calm.variables
    return {"lease_s": LEASE_S, "body_s": BODY_S, "calm": dict(counted), "asleep": slept}


def _asleep(stack: Stack, path: str) -> dict[str, Any]:
    execution_id = running.begin(stack, path, {})
    wait_until(
        lambda: "frame.started" in {item["event_type"] for item in history(stack, execution_id)},
        timeout_s=60,
        what="a frame has started",
    )
    (sleeper, *_) = [
        item["context"]["worker_id"]
        for item in history(stack, execution_id)
        if item["event_type"] == "frame.started"
    ]
    stack.pause(sleeper)
    began = time.time()
    try:
        wait_until(
            lambda: time.time() - began > 3 * LEASE_S, timeout_s=6 * LEASE_S, what="three leases"
        )
    finally:
        stack.resume(sleeper)
    wait_until(
        lambda: running.status(stack, execution_id)["status"] in running.TERMINAL,
        timeout_s=running.PATIENCE_S,
        what="the end",
    )
    shown = running.status(stack, execution_id)
    assert (shown["status"], shown["variables"]) == ("COMPLETED", {"sums": [1, 5]}), shown
    assert_parity(stack, execution_id)
    events = history(stack, execution_id)
    counted = Counter(event["event_type"] for event in events)
    abandoned = [item for item in events if item["event_type"] == "frame.abandoned"]
    first_s = datetime.fromisoformat(abandoned[0]["created_at"]).timestamp() - began
    assert {item["context"]["previous_worker"] for item in abandoned} == {sleeper}, abandoned
    assert first_s < LEASE_S + SLACK_S, first_s
    assert counted["frame.committed"] == 2, counted
    return {
        "abandoned_after_s": round(first_s, 1),
        "refused": sum(counted[kind] for kind in REFUSED),
        "events": dict(counted),
    }


def history(stack: Stack, execution_id: str) -> list[dict[str, Any]]:
    """Everything that happened so far."""
    url = f"{stack.url('api')}/api/executions/{execution_id}/events"
    answer = http.get(url, params={"limit": 1000}, timeout=10)
    events: list[dict[str, Any]] = answer.json()["events"] if answer.is_success else []
    return events


def section(found: dict[str, Any]) -> str:
    """Write what was found."""
    asleep = found["asleep"]
    return f"""Two workers, leases of {found["lease_s"]} s, frames whose body takes {found["body_s"]} s.

| run | frames dispatched | abandoned | committed |
|---|---:|---:|---:|
| workers that beat | {found["calm"]["frame.dispatched"]} | {found["calm"].get("frame.abandoned", 0)} | {found["calm"]["frame.committed"]} |
| one is stopped for three leases, and wakes | {asleep["events"]["frame.dispatched"]} | {asleep["events"]["frame.abandoned"]} | {asleep["events"]["frame.committed"]} |

The stopped worker's frame was abandoned {asleep["abandoned_after_s"]} s after it had stopped. Once awake it had {asleep["refused"]} commits refused
(a worker that notices the time itself commits nothing). The results are those of the calm run, each frame committed
once, and the projections what the ledger folds to.
"""
