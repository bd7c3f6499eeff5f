"""The data under a slider: density, states and far moments of a run of 100,000 events and more."""

import random
import statistics
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
from tests.proof import running
from tests.support.parity import assert_parity
from tests.support.servers import wait_until
from tests.support.stack import Stack, running_stack

LOOPS, ITEMS = 1, 100_000
EVENTS_MIN = 100_000
PLACES = 60
SPANS = 200
# A snapshot in every 64th of a history, and never two within so many versions of each other.
PARTS, SPACING = 64, 1000
LOOP = f"""\
  - step: loop_{{number}}
    loop: {{{{in: "{{{{{{{{ {ITEMS} }}}}}}}}", iterator: n, spec: {{{{mode: parallel, max_in_flight: 100, collect: none}}}}}}}}
    tool: {{{{kind: noop}}}}
    next: {{{{arcs: [{{{{step: loop_{{after}}}}}}]}}}}
"""
PLAYBOOK = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: slider, path: proof/slider}\nworkflow:\n"
    + "".join(LOOP.format(number=number, after=number + 1) for number in range(LOOPS))
    + f"  - {{step: loop_{LOOPS}, tool: {{kind: noop}}, set: {{ctx.done: {ITEMS}}}}}\n"
)


def prove(folder: Path) -> dict[str, Any]:
    """Run a long loop, then ask for its density and for its state at places chosen by lot."""
    with running_stack(folder / "stack", "--workers", "1", "--no-s3") as stack:
        ran = running.run(stack, running.register(stack, PLAYBOOK))
        assert ran.variables == {"done": ITEMS}, ran.variables
        place, proof = f"{stack.url('api')}/api", stack.owner_headers
        with httpx.Client(base_url=place, headers=proof, timeout=120) as api:
            asked = {
                "execution_id": ran.execution_id,
                "tenant_id": "default",
                "organization_id": "default",
            }
            events = _projected(stack, api, asked)
            assert events >= EVENTS_MIN, events
            found = _looked_back(api, asked, events)
        assert_parity(stack, ran.execution_id)
    return {"events": events, "items": LOOPS * ITEMS, "places": PLACES, **found}


def _projected(stack: Stack, api: httpx.Client, asked: dict[str, str]) -> int:
    """Wait until the projection shows the whole history; return its length."""
    head = _get(api, "/replay/state", asked, projection="execution")[1]["head_version"]

    def is_shown() -> bool:
        answer = api.get("/replay/live", params=asked)
        return bool(answer.is_success and answer.json()["version"] == head)

    wait_until(is_shown, timeout_s=running.PATIENCE_S, what="the projection has caught up")
    assert stack.is_ready("projector-1")
    return int(head)


def _looked_back(api: httpx.Client, asked: dict[str, str], events: int) -> dict[str, Any]:
    lot = random.Random(1)
    places = [1, events, *(lot.randint(1, events) for _ in range(PLACES - 2))]
    states, folded = [], []
    for place in places:
        ms, answer = _get(api, "/replay/state", asked, projection="execution", as_of_position=place)
        assert answer["version"] == place
        states.append(ms)
        folded.append(answer["events_folded"])
    bound = max(SPACING, 2 * -(-events // PARTS)) + SPACING
    assert max(folded) <= bound, (max(folded), bound)
    densities = []
    for _ in range(5):
        ms, density = _get(api, "/replay/density", asked, spans=SPANS)
        assert sum(bucket["events"] for bucket in density["buckets"]) == events
        assert len(density["buckets"]) <= SPANS
        densities.append(ms)
    far, third = events - 1, events // 3
    moment = f"/executions/{asked['execution_id']}/moment"
    return {
        "state_ms": {"median": round(statistics.median(states)), "most": round(max(states))},
        "folded": {"median": round(statistics.median(folded)), "most": max(folded), "bound": bound},
        "density_ms": {
            "median": round(statistics.median(densities)),
            "most": round(max(densities)),
        },
        "far": {
            "a moment of the console": _fold(api, moment, {}, version=far),
            "the same moment again": _fold(api, moment, {}, version=far),
            "counts and checksums of all rows": _fold(
                api, "/replay/state", asked, as_of_position=far, rows="false"
            ),
            "all rows": _fold(api, "/replay/state", asked, as_of_position=events),
            "what differs from a third of the way on": _fold(
                api, "/replay/diff", asked, before=third, after=far
            ),
        },
    }


def _fold(
    api: httpx.Client, path: str, asked: dict[str, str], **more: Any
) -> dict[str, int | float]:
    """Ask as clients do, until the history is folded far enough."""
    times_ms: list[float] = []
    folded, size = 0, 0
    while True:
        began = time.perf_counter()
        answer = api.get(path, params={**asked, **more})
        times_ms.append((time.perf_counter() - began) * 1000)
        assert answer.is_success, answer.text[:500]
        if answer.status_code != HTTPStatus.ACCEPTED:
            size = len(answer.content)
            break
        assert answer.json()["folded"] > folded
        folded = answer.json()["folded"]
    return {
        "answers": len(times_ms),
        "seconds": round(sum(times_ms) / 1000, 2),
        "longest_ms": round(max(times_ms)),
        "megabytes": round(size / 1e6, 1),
    }


def _get(api: httpx.Client, path: str, asked: dict[str, str], **more: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    while True:
        answer = api.get(path, params={**asked, **more})
        assert answer.is_success, answer.text[:500]
        if answer.status_code != HTTPStatus.ACCEPTED:
            return (time.perf_counter() - began) * 1000, answer.json()


def section(found: dict[str, Any]) -> str:
    """Write what was found."""
    state, folded, density = found["state_ms"], found["folded"], found["density_ms"]
    return f"""A loop of {found["items"]:,} items whose history has {found["events"]:,} events, on a stack with its own servers.

| asked over HTTP | median | most | bound |
|---|---:|---:|---:|
| state at one of {found["places"]} positions chosen by lot (`projection=execution`) | {state["median"]} ms | {state["most"]} ms | |
| events that were folded for it | {folded["median"]:,} | {folded["most"]:,} | {folded["bound"]:,} |
| density in {SPANS} spans | {density["median"]} ms | {density["most"]} ms | |
{_far_rows(found)}
What the projections show is what the ledger folds to, at the end and at 50 places on the way.
"""


def _far_rows(found: dict[str, Any]) -> str:
    """Write what was folded in slices; an earlier finding has one request for all rows alone."""
    if "far" not in found:
        name = "the latest state with the rows of all surfaces, which folds everything"
        return f"| {name} | {found['all_surfaces_ms']} ms | | |\n"
    rows = "\n".join(
        f"| {name} | {one['answers']} | {one['seconds']} s | {one['longest_ms']:,} ms | {one['megabytes']} MB |"
        for name, one in found["far"].items()
    )
    return f"""
What lies far from the beginning is folded in slices of 20,000 events, one an answer:

| asked for, at the end of the history | answers | together | longest | the last one |
|---|---:|---:|---:|---:|
{rows}
"""
