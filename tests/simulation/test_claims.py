"""Pools served over HTTP: a stranger claims, works, is late, and all stays whole."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.http_pools import FRAMES, STEP, World, open_world, stage_of
from tests.support.inprocess import ExecutionRecord, begin, ended, value


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


async def finished(world: World, execution_id: Any) -> ExecutionRecord:
    return await ended(world.opened, execution_id)


async def test_a_strangers_result_is_a_step_s_result_like_any_other(world: World) -> None:
    execution_id = await begin(world.opened, STEP, who="you")
    worker = world.stranger()
    claim = await worker.claim("edge", wait_s=10)
    assert claim is not None
    assert (claim["step"], claim["pool"]) == ("greet", "edge")
    assert claim["tasks"][0]["input"] == {"name": "you"}
    code, heard = await worker.end(claim, "heartbeat")
    assert (code, heard["should_stop"]) == (200, False)
    code, verdict = await worker.end(claim, "complete", result={"text": "hi you"}, set={"n": 3})
    assert (code, verdict["status"]) == (200, "COMPLETED")
    outcome = await finished(world, execution_id)
    assert outcome.types[-1] == "playbook.completed"
    last = (await value(world.opened, outcome, "use"))["tasks"]["use_task"]["raw"]
    assert last == ["hi you", 3]
    code, again = await worker.end(claim, "complete", result={"text": "again"})
    assert (code, again["code"]) == (409, "command_already_terminal")


async def test_of_many_who_ask_for_one_command_one_gets_it(world: World) -> None:
    execution_id = await begin(world.opened, STEP)
    asked = [world.stranger(f"w{i}").claim("edge", wait_s=3) for i in range(6)]
    claims = [item for item in await asyncio.gather(*asked) if item is not None]
    assert len(claims) == 1
    name = claims[0]["lease"]["worker_id"]
    other = world.stranger("thief")
    stolen = {**claims[0], "lease": {**claims[0]["lease"], "worker_id": "thief"}}
    code, refused = await other.end(stolen, "complete", result="mine")
    assert (code, refused["code"]) == (409, "owner_mismatch")
    assert (
        await world.stranger(name).end(claims[0], "complete", result={"text": "a"}, set={"n": 1})
    )[0] == 200
    outcome = await finished(world, execution_id)
    assert outcome.types.count("command.completed") == 2


async def test_a_worker_that_wakes_after_its_lease_changes_nothing(world: World) -> None:
    execution_id = await begin(world.opened, STEP)
    sleeper, heir = world.stranger("sleeper"), world.stranger("heir")
    claim = await sleeper.claim("edge", wait_s=10)
    assert claim is not None
    await world.lose(claim)
    second = await heir.claim("edge", wait_s=10)
    assert second is not None
    assert second["lease"]["attempt"] == 2
    for verb, body in (("heartbeat", {}), ("complete", {"result": "late"})):
        code, refused = await sleeper.end(claim, verb, **body)
        assert (code, refused["code"], refused["current_attempt"]) == (409, "stale_lease", 2)
    assert (await heir.end(second, "complete", result={"text": "b"}, set={"n": 1}))[0] == 200
    outcome = await finished(world, execution_id)
    (rejected,) = outcome.of("command.rejected")
    assert (rejected.attempt, rejected.worker_id) == (1, "sleeper")
    assert outcome.types.count("call.done") == 2


async def test_a_command_is_given_back_and_failed(world: World) -> None:
    execution_id = await begin(world.opened, STEP)
    worker = world.stranger()
    claim = await worker.claim("edge", wait_s=10)
    assert claim is not None
    assert (await worker.end(claim, "release"))[0] == 200
    second = await worker.claim("edge", wait_s=10)
    assert second is not None
    assert second["lease"]["attempt"] == 2
    error = {"kind": "validation", "message": "cannot greet"}
    code, verdict = await worker.end(second, "fail", error=error)
    assert (code, verdict["status"]) == (200, "FAILED")
    outcome = await finished(world, execution_id)
    (failed,) = outcome.of("playbook.failed")
    assert (failed.error.kind, failed.error.message) == ("validation", "cannot greet")


async def test_frames_are_claimed_committed_and_gathered_in_order(world: World) -> None:
    execution_id = await begin(world.opened, FRAMES)
    stage = await stage_of(world, execution_id)
    sleeper, worker = world.stranger("sleeper"), world.stranger("worker")
    first = (await sleeper.claim_frame(stage, wait_s=10))["claim"]
    assert first is not None
    assert (first["frame"]["process"], first["frame"]["row_count"]) == ("row", 4)
    code, refused = await sleeper.end(first, "complete", result=1)
    assert (code, refused["code"]) == (409, "command_is_a_frame")
    await world.lose(first)
    committed = 0
    while committed < 3:
        claim = (await worker.claim_frame(stage, wait_s=10, execution_id=execution_id))["claim"]
        assert claim is not None
        rows = claim["frame"]["rows"]
        short = await worker.end_frame(claim, "commit", status="COMMITTED", output=[1])
        assert (short[0], short[1]["code"]) == (422, "output_does_not_fit")
        assert (await worker.end_frame(claim, "heartbeat"))[0] == 200
        code, verdict = await worker.end_frame(
            claim, "commit", status="COMMITTED", output=[row * 2 for row in rows]
        )
        assert (code, verdict["status"]) == (200, "COMPLETED")
        committed += 1
    outcome = await finished(world, execution_id)
    assert (await value(world.opened, outcome, "total"))["tasks"]["total_task"]["raw"] == [
        n * 2 for n in range(10)
    ]
    code, late = await sleeper.end_frame(first, "commit", status="COMMITTED", output=[0] * 4)
    assert (code, late["code"]) == (409, "frame_already_terminal")
    assert late["status"] == 409
    assert late["terminal_event_id"]
    assert outcome.types.count("frame.committed") == 3
    over = await worker.claim_frame(stage, execution_id=execution_id)
    assert (over["claim"], over["stage_status"]) == (None, "COMPLETED")


async def test_a_late_commit_of_a_frame_is_refused_and_recorded(world: World) -> None:
    execution_id = await begin(world.opened, FRAMES.replace("4", "10"))
    stage = await stage_of(world, execution_id)
    sleeper, worker = world.stranger("sleeper"), world.stranger("worker")
    first = (await sleeper.claim_frame(stage, wait_s=10))["claim"]
    await world.lose(first)
    again = (await worker.claim_frame(stage, wait_s=10))["claim"]
    assert again["frame"]["frame_id"] == first["frame"]["frame_id"]
    assert again["frame"]["rows"] == first["frame"]["rows"]
    code, late = await sleeper.end_frame(first, "commit", status="COMMITTED", output=[0] * 10)
    assert (code, late["code"]) == (409, "stale_lease")
    error = {"kind": "timeout", "message": "gave up"}
    code, verdict = await worker.end_frame(again, "commit", status="FAILED", error=error)
    assert (code, verdict["status"]) == (200, "FAILED")
    outcome = await finished(world, execution_id)
    (refused,) = outcome.of("frame.commit_rejected")
    assert refused.worker_id == "sleeper"
    assert outcome.types[-1] == "playbook.failed"


async def test_a_pool_is_served_in_one_way_only(world: World) -> None:
    worker = world.stranger()
    code, refused = await worker.post("/api/commands/claim", worker_id="w", pool="default")
    assert (code, refused["code"]) == (409, "pool_served_by_jetstream")
    code, unknown = await worker.post("/api/commands/claim", worker_id="w", pool="edgy")
    assert (code, "did you mean 'edge'" in unknown["hint"]) == (404, True)
    assert await worker.claim("edge") is None


async def test_what_makes_no_sense_is_refused_with_a_reason(world: World) -> None:
    worker = world.stranger()
    lease = {"execution_id": "1", "attempt": 1, "worker_id": "w"}
    for path, body, code in (
        ("/api/commands/claim", {"worker_id": "a b", "pool": "edge"}, 400),
        ("/api/commands/claim", {"worker_id": "w", "pool": "edge", "wait_s": 1e9}, 400),
        ("/api/commands/x/heartbeat", lease, 404),
        ("/api/commands/5/heartbeat", lease, 404),
        ("/api/frames/5/commit", {**lease, "command_id": "2", "status": "DONE"}, 400),
        ("/api/stages/x/frames/claim", {"worker_id": "w"}, 400),
    ):
        found, answer = await worker.post(path, **body)
        assert found == code, (path, answer)
        assert answer["detail"], path


LARGE = """
workflow:
  - step: make
    spec: {pool: edge}
    tool: {kind: noop}
    next: {arcs: [{step: use}]}
  - step: use
    spec: {pool: edge}
    tool: {kind: noop, input: {first: "{{ make.rows[0] }}"}}
"""


def place(node: str, **more: Any) -> dict[str, Any]:
    return {"zone": "z1", "node": node, "runtime": "rust", **more}


async def made(world: World, node: str) -> Any:
    """Let a large result be made on a node."""
    execution_id = await begin(world.opened, LARGE)
    maker = world.stranger(f"maker-{node}")
    # What others made before is too far; a first step has no inputs and is nowhere too far.
    claim = await maker.claim("edge", wait_s=10, locality=place(node, max_distance="node"))
    assert claim is not None
    assert claim["step"] == "make"
    result = {"rows": ["x" * 3000]}
    assert (await maker.end(claim, "complete", result=result))[0] == 200
    return execution_id


async def test_the_nearest_work_is_claimed_first_and_none_that_is_too_far(world: World) -> None:
    first = await made(world, "n1")
    second = await made(world, "n2")
    elsewhere = {"zone": "z2", "node": "n9", "max_distance": "zone"}
    assert await world.stranger("w0").claim("edge", locality=elsewhere) is None
    near = await world.stranger("w2").claim(
        "edge", wait_s=10, locality=place("n2", max_distance="node")
    )
    assert near is not None
    assert near["lease"]["execution_id"] == second
    # Of what is left, another node of the zone is near enough.
    left = await world.stranger("w3").claim(
        "edge", wait_s=10, locality=place("n3", max_distance="zone")
    )
    assert left is not None
    assert left["lease"]["execution_id"] == first
    for name, claim in (("w2", near), ("w3", left)):
        assert (await world.stranger(name).end(claim, "complete", result=1))[0] == 200
    outcome = await finished(world, second)
    begun = outcome.of("command.started")[-1]
    assert (begun.placement.distance, begun.placement.max_distance) == ("node", "node")
    assert outcome.of("command.issued")[-1].source_locality == {"zone": "z1", "node": "n2"}
    assert (await finished(world, first)).of("command.started")[-1].placement.distance == "zone"


async def test_a_locality_that_names_no_place_is_refused(world: World) -> None:
    for locality in ({"node": 7}, {"node": "n", "max_distance": "near"}, {"max_distance": "zone"}):
        code, refused = await world.stranger("w").post(
            "/api/commands/claim", worker_id="w", pool="edge", locality=locality
        )
        assert (code, refused["code"]) == (422, "locality_malformed"), locality
