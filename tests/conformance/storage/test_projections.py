import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.storage import (
    NOON,
    ORGANIZATION,
    TENANT,
    Stores,
    a_fence,
    a_run,
    a_stream,
    an_append,
    an_execution,
    eventually,
)

from noetl_contracts import ids
from noetl_contracts.ids import CommandId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import LeasedCommand
from noetl_replay import rows as replay_rows
from noetl_storage.ledger.frame_bins import bin_frames
from noetl_storage.ledger.surfaces import KEY_BY_SURFACE

Row = dict[str, Any]
NESTED = {"z": [1, 1.0, 1e20, -0.0, None, {"é": "\n"}], "a": {}, "big": 2**60}


def owned(execution: str) -> Row:
    return {"execution_id": execution, "tenant_id": TENANT, "organization_id": ORGANIZATION}


def execution_row(execution: str, **fields: Any) -> Row:
    return {
        **owned(execution),
        "parent_execution_id": None,
        "path": "demo/pft",
        "catalog_id": "77",
        "catalog_version": 2,
        "status": "RUNNING",
        "current_step": "fetch",
        "completed_steps": ["start", "b"],
        "workload": NESTED,
        "variables": {},
        "error": None,
        "result": None,
        "frames": 3,
        "rows": 9_000_000_000,
        "warnings": 0,
        "last_event_id": "42",
        "last_event_type": "step.enter",
        "version": 7,
        "envelope_checksum": "c",
        "started_at": NOON,
        "updated_at": NOON + timedelta(microseconds=123457),
        "ended_at": None,
        **fields,
    }


def command_row(execution: str, command: str = "501", **fields: Any) -> Row:
    return {
        **owned(execution),
        "command_id": command,
        "run_id": "9",
        "step_name": "fetch",
        "unit": "slot-0-1",
        "pool": "default",
        "lane": "io",
        "stage_id": None,
        "status": "RUNNING",
        "attempts": 1,
        "worker_id": "worker-1",
        "worker_locator": None,
        "locality": {"zone": "a"},
        "rejected": 0,
        "issued_event_id": "1",
        "started_event_id": None,
        "terminal_event_id": None,
        "issued_at": NOON,
        "heard_at": NOON,
        "completed_at": None,
        **fields,
    }


def frame_row(execution: str, frame: str = "301", **fields: Any) -> Row:
    return {
        **owned(execution),
        "frame_id": frame,
        "stage_id": "201",
        "parent_frame_id": None,
        "command_id": "501",
        "claimed_event_id": "5",
        "terminal_event_id": None,
        "cursor": {"slot": 0, "frame_index": 1, "rows_ref": {"uri": "noetl://x"}, "metrics": {}},
        "row_count": 50,
        "rows_failed": 0,
        "status": "CLAIMED",
        "owner_worker": "worker-1",
        "output_ref": None,
        "attempts": 1,
        "created_at": NOON,
        "completed_at": None,
        **fields,
    }


def stage_row(execution: str, **fields: Any) -> Row:
    return {
        **owned(execution),
        "stage_id": "201",
        "parent_stage_id": "77",
        "run_id": "9",
        "step_name": "fetch",
        "kind": "loop",
        "status": "OPEN",
        "slots": 4,
        "frame_policy": {"max_rows": 50},
        "frames": 1,
        "frames_failed": 0,
        "rows": 50,
        "rows_failed": 0,
        "opened_event_id": "3",
        "closed_event_id": None,
        "started_at": NOON,
        "ended_at": None,
        **fields,
    }


def loop_row(execution: str) -> Row:
    return {
        **owned(execution),
        "run_id": "9",
        "step_name": "fetch",
        "mode": "cursor",
        "status": "RUNNING",
        "stage_id": "201",
        "total": 50,
        "done": 10,
        "failed": 0,
        "in_flight": 4,
        "is_finished": False,
        "last_event_id": "8",
        "started_at": NOON,
    }


def object_row(execution: str) -> Row:
    return {
        **owned(execution),
        "object_id": "invoice/1",
        "object_type": "invoice",
        "status": "open",
        "version": 1,
        "attributes": NESTED,
        "payload_refs": [],
        "first_event_id": "1",
        "last_event_id": "2",
        "is_deleted": False,
        "created_at": NOON,
        "updated_at": NOON,
    }


def every_surface(execution: str) -> dict[str, Any]:
    return {
        "execution": [execution_row(execution)],
        "stage": [stage_row(execution)],
        "frame": [frame_row(execution, "999"), frame_row(execution, "1000")],
        "command": [command_row(execution)],
        "loop": [loop_row(execution)],
        "business_object": [object_row(execution)],
    }


async def project(
    stores: Stores, execution: str, /, *, old: int = 0, new: int = 1, **rows: list[Row]
) -> list[str]:
    return await stores.projections.apply_rows(
        shard=0, rows=rows, positions={execution: (old, new)}
    )


async def test_rows_read_back_equal_and_in_key_order(stores: Stores) -> None:
    execution = an_execution()
    rows = every_surface(execution)

    assert await project(stores, execution, **rows) == []

    for surface in KEY_BY_SURFACE:
        assert await stores.projections.list_rows(surface, execution) == rows[surface], surface
    (found,) = await stores.projections.list_rows("execution", execution)
    assert str(found["workload"]) == str(NESTED)
    assert found["updated_at"].tzinfo == UTC


async def test_an_execution_that_is_late_says_so_until_its_row_does_not(stores: Stores) -> None:
    execution = an_execution()
    late = [{"step": "load", "run_id": "9", "since": NOON.isoformat(), "ended_at": None}]
    row = execution_row(execution, late=late)
    await project(stores, execution, execution=[row])
    assert await stores.projections.list_rows("execution", execution) == [row]
    await project(stores, execution, old=1, new=2, execution=[execution_row(execution)])
    assert await stores.projections.list_rows("execution", execution) == [execution_row(execution)]


async def test_the_rows_of_a_replay_are_the_rows_of_storage() -> None:
    assert replay_rows.KEY_BY_SURFACE == KEY_BY_SURFACE


async def test_later_rows_replace_earlier_ones(stores: Stores) -> None:
    execution = an_execution()
    await project(stores, execution, **every_surface(execution))
    done = frame_row(execution, "999", status="COMPLETED", completed_at=NOON, output_ref={"a": 1})
    stale = frame_row(execution, "999", status="RUNNING")

    await project(stores, execution, old=1, new=5, frame=[stale, done])

    rows = await stores.projections.list_rows("frame", execution)
    assert rows == [done, frame_row(execution, "1000")]
    assert await stores.projections.list_positions([execution, an_execution()]) == {execution: 5}


async def test_a_stage_has_a_parent_or_none(stores: Stores) -> None:
    execution = an_execution()
    root, nested = (
        stage_row(execution, stage_id=stage, parent_stage_id=parent)
        for stage, parent in (("201", None), ("202", "201"))
    )
    await project(stores, execution, stage=[root, nested])
    assert await stores.projections.list_rows("stage", execution) == [root, nested]
    closed = {**nested, "status": "CLOSED", "ended_at": NOON}
    await project(stores, execution, old=1, new=2, stage=[closed])
    assert await stores.projections.list_rows("stage", execution) == [root, closed]


async def test_an_execution_that_moved_elsewhere_is_left_out(stores: Stores) -> None:
    known, other = an_execution(), an_execution()
    await project(stores, known, new=3, execution=[execution_row(known, version=3)])

    left_out = await stores.projections.apply_rows(
        shard=1,
        rows={"execution": [execution_row(known, version=9), execution_row(other)]},
        positions={known: (2, 9), other: (0, 1)},
    )

    assert left_out == [known]
    assert await stores.projections.list_positions([known, other]) == {known: 3, other: 1}
    (row,) = await stores.projections.list_rows("execution", known)
    assert row["version"] == 3
    assert await stores.projections.list_rows("execution", other) != []
    assert await project(stores, known, old=0, new=9) == [known]


async def test_of_two_projectors_one_moves_an_execution(stores: Stores) -> None:
    execution = an_execution()
    for old in (0, 4):
        outcomes = await asyncio.gather(
            *(
                project(
                    stores,
                    execution,
                    old=old,
                    new=old + 4,
                    execution=[execution_row(execution, version=old + n)],
                )
                for n in range(6)
            )
        )
        assert sum(outcome == [] for outcome in outcomes) == 1


async def test_an_unknown_surface_is_refused(stores: Stores) -> None:
    with pytest.raises(KeyError, match="nothing"):
        await stores.projections.list_rows("nothing", an_execution())
    with pytest.raises(KeyError, match="nothing"):
        await project(stores, an_execution(), nothing=[])


async def test_a_cleared_execution_can_be_projected_again(stores: Stores) -> None:
    execution, other = an_execution(), an_execution()
    for item in (execution, other):
        await project(stores, item, new=7, **every_surface(item))
    await stores.projections.clear_execution(execution)

    for surface in KEY_BY_SURFACE:
        assert await stores.projections.list_rows(surface, execution) == []
        assert await stores.projections.list_rows(surface, other) != []
    assert await stores.projections.list_positions([execution]) == {}
    assert await project(stores, execution, **every_surface(execution)) == []


async def test_text_that_a_database_cannot_keep_does_not_stop_the_projection(
    stores: Stores,
) -> None:
    execution = an_execution()
    row = execution_row(execution, error={"kind": "x", "message": "nul \x00"})
    assert await project(stores, execution, execution=[row]) == []
    assert len(await stores.projections.list_rows("execution", execution)) == 1


async def test_executions_behind_the_ledger_are_found(stores: Stores) -> None:
    fence = await a_fence(stores)
    behind, current = an_execution(), an_execution()
    for execution in (behind, current):
        await stores.ledger.append(an_append(fence, a_stream(execution, [a_run(), a_run()])))
        await project(stores, execution, execution=[execution_row(execution)])
    await project(stores, current, old=1, new=2)

    async def found(*, shard: int, shard_count: int = 16) -> list[ExecutionId]:
        return await stores.projections.list_executions_behind(
            shard=shard, shard_count=shard_count, older_than_s=0.0, executions_max=10
        )

    home = ids.find_shard(behind, 16)
    assert await eventually(lambda: found(shard=home), what="some time passes") == [behind]
    assert await found(shard=(home + 1) % 16) == []
    assert await found(shard=0, shard_count=1) == [behind]
    assert (
        await stores.projections.list_executions_behind(
            shard=home, shard_count=16, older_than_s=60.0, executions_max=10
        )
        == []
    )


async def test_executions_are_listed_newest_first(stores: Stores) -> None:
    executions = sorted((an_execution() for _ in range(5)), key=int, reverse=True)
    # One that was asked for earlier may begin later, and one has not begun.
    hours = (0, 3, 1, 4, None)
    for n, (execution, ago) in enumerate(zip(executions, hours, strict=True)):
        row = execution_row(
            execution,
            path=f"p{n % 2}",
            status="RUNNING" if n else "COMPLETED",
            started_at=None if ago is None else NOON - timedelta(hours=ago),
        )
        await project(stores, execution, execution=[row])

    async def listed(**fields: Any) -> list[str]:
        values: dict[str, Any] = {
            "tenant_id": TENANT,
            "organization_id": ORGANIZATION,
            "status": None,
            "path": None,
            "before": None,
            "executions_max": 10,
            **fields,
        }
        return [row["execution_id"] for row in await stores.projections.list_executions(**values)]

    assert await listed() == executions
    assert await listed(executions_max=2) == executions[:2]
    assert await listed(before=executions[1]) == executions[2:]
    assert await listed(status="COMPLETED") == executions[:1]
    assert await listed(path="p1") == executions[1::2]
    lately = [executions[n] for n in (0, 2, 4)]
    assert await listed(since=NOON - timedelta(hours=2)) == lately
    assert await listed(since=NOON - timedelta(hours=2), status="RUNNING") == lately[1:]
    assert await listed(tenant_id=TenantId("other")) == []
    assert await listed(organization_id=OrganizationId("east")) == []


async def test_live_commands_are_counted_by_tenant_stage_and_status(stores: Stores) -> None:
    live, ended = an_execution(), an_execution()
    commands = [
        command_row(live, "501", stage_id="201"),
        command_row(live, "502", stage_id="201"),
        command_row(live, "503", status="ISSUED"),
        command_row(live, "504", status="COMPLETED"),
    ]
    await project(
        stores,
        live,
        execution=[execution_row(live)],
        stage=[stage_row(live, kind="fanout")],
        command=commands,
    )
    await project(
        stores,
        ended,
        execution=[execution_row(ended, status="CANCELLED", ended_at=NOON)],
        command=[command_row(ended, "505")],
    )
    counts = await stores.projections.count_live_commands()
    assert sorted((item.stage_kind, item.status, item.commands) for item in counts) == [
        ("fanout", "RUNNING", 2),
        ("step", "ISSUED", 1),
    ]
    assert {(item.tenant_id, item.organization_id) for item in counts} == {(TENANT, ORGANIZATION)}


async def test_commands_that_nobody_hears_of_are_overdue(stores: Stores) -> None:
    live, ended = an_execution(), an_execution()
    now = datetime.now(UTC)
    rows = {
        "execution": [execution_row(live), execution_row(ended, ended_at=NOON)],
        "command": [
            command_row(live, "1", status="ISSUED", attempts=3),
            command_row(live, "2", heard_at=NOON - timedelta(days=1)),
            command_row(live, "3", heard_at=now),
            command_row(live, "4", status="COMPLETED"),
            command_row(ended, "5"),
        ],
    }
    await stores.projections.apply_rows(shard=0, rows=rows, positions={live: (0, 1), ended: (0, 1)})

    overdue = await stores.projections.list_overdue(grace_s=60.0, commands_max=10)

    assert [(item.command_id, item.attempt, item.status) for item in overdue] == [
        ("2", 1, "RUNNING"),
        ("1", 3, "ISSUED"),
    ]
    assert (overdue[0].execution_id, overdue[0].pool, overdue[0].lane) == (live, "default", "io")


async def test_many_silent_commands_of_one_place_hide_none_of_another(stores: Stores) -> None:
    live, other = an_execution(), an_execution()
    old = NOON - timedelta(days=1)
    places: list[Row] = [
        {"pool": "edge"},
        {"lane": "io-low"},
        {"tenant_id": "other"},
        {"status": "RUNNING"},
    ]
    commands = [
        *(command_row(live, f"1{n}", status="ISSUED", heard_at=old) for n in range(9)),
        *(
            command_row(live, str(n), **{"status": "ISSUED", "heard_at": NOON, **place})
            for n, place in enumerate(places, start=2)
        ),
        command_row(other, "9", status="RUNNING", heard_at=NOON),
    ]
    rows = {"execution": [execution_row(live), execution_row(other)], "command": commands}
    await stores.projections.apply_rows(shard=0, rows=rows, positions={live: (0, 1), other: (0, 1)})
    overdue = await stores.projections.list_overdue(grace_s=60.0, commands_max=2)
    assert all(item.command_id.startswith("1") for item in overdue[:2])
    assert sorted(item.command_id for item in overdue[2:]) == ["2", "3", "4", "5", "9"]


async def test_commands_that_nobody_has_begun_are_listed(stores: Stores) -> None:
    live, paused, ended = an_execution(), an_execution(), an_execution()
    waiting: Row = {"status": "ISSUED", "pool": "edge"}
    rows = {
        "execution": [
            execution_row(live),
            execution_row(paused, status="PAUSED"),
            execution_row(ended, ended_at=NOON),
        ],
        "command": [
            command_row(live, "1", **waiting, stage_id="201"),
            command_row(live, "2", **waiting, heard_at=NOON - timedelta(days=1), lane="io-high"),
            command_row(live, "3", status="RUNNING", pool="edge"),
            command_row(live, "4", status="ISSUED"),
            command_row(paused, "5", **waiting),
            command_row(ended, "6", **waiting),
        ],
    }
    positions = dict.fromkeys((live, paused, ended), (0, 1))
    await stores.projections.apply_rows(shard=0, rows=rows, positions=positions)

    async def listed(**fields: Any) -> list[str]:
        asked = {"tenant_id": TENANT, "organization_id": ORGANIZATION, "commands_max": 10, **fields}
        return [item.command_id for item in await stores.projections.list_issued(**asked)]

    assert sorted(await listed(execution_id=live)) == ["1", "2", "4"]
    assert await listed(stage_id="201") == ["1"]
    assert await listed(tenant_id=TenantId("other")) == []
    (first, _) = await stores.projections.list_urgent(
        tenant_id=TENANT, organization_id=ORGANIZATION, pools=["edge"], commands_max=10
    )
    assert (first.execution_id, first.lane, first.step) == (live, "io-high", "fetch")
    assert (first.stage_id, first.since) == (None, NOON - timedelta(days=1))


async def test_what_is_urgent_is_seen_before_what_waits_longer(stores: Stores) -> None:
    execution = an_execution()
    waiting: Row = {"status": "ISSUED", "pool": "edge"}
    old = NOON - timedelta(days=1)
    commands = [
        *(
            command_row(execution, f"1{n}", **waiting, heard_at=old, lane="io-low")
            for n in range(5)
        ),
        command_row(execution, "2", **waiting, heard_at=NOON, lane="spark"),
        command_row(execution, "3", **waiting, heard_at=NOON, lane="io"),
        command_row(execution, "4", **waiting, heard_at=NOON, lane="io-high"),
        command_row(execution, "5", **waiting, heard_at=old, lane="io-high"),
        command_row(execution, "6", status="ISSUED", pool="far", heard_at=old, lane="io-high"),
    ]
    await project(stores, execution, execution=[execution_row(execution)], command=commands)

    async def listed(*pools: str, commands_max: int = 4, **fields: Any) -> list[str]:
        asked = {"tenant_id": TENANT, "organization_id": ORGANIZATION, **fields}
        found = await stores.projections.list_urgent(
            **asked, pools=pools, commands_max=commands_max
        )
        return [item.command_id for item in found]

    assert await listed("edge", commands_max=3) == ["5", "4", "3"]
    assert (await listed("edge", commands_max=10))[3:] == [*(f"1{n}" for n in range(5)), "2"]
    assert sorted((await listed("far", "edge"))[:2]) == ["5", "6"]
    assert await listed() == []
    assert await listed("edge", organization_id=OrganizationId("other")) == []


async def test_what_workers_run_is_listed_with_its_frame_and_its_lease(stores: Stores) -> None:
    live, ended = an_execution(), an_execution()
    at_work: Row = {"status": "RUNNING", "worker_id": "w-1"}
    rows = {
        "execution": [execution_row(live), execution_row(ended, ended_at=NOON)],
        "stage": [stage_row(live, stage_id="201", frame_policy={"lease_seconds": 12})],
        "command": [
            command_row(live, "1", **at_work, started_event_id="90", stage_id="201"),
            command_row(live, "2", status="RUNNING", worker_id="w-2", started_event_id="80"),
            command_row(live, "3", status="ISSUED", worker_id=None),
            command_row(live, "4", status="COMPLETED", worker_id="w-1", started_event_id="70"),
            command_row(ended, "5", **at_work, started_event_id="60"),
        ],
        "frame": [
            frame_row(live, "301", command_id="1", status="COMPLETED"),
            frame_row(live, "302", command_id="1", status="RUNNING"),
        ],
    }
    await stores.projections.apply_rows(
        shard=0, rows=rows, positions=dict.fromkeys((live, ended), (0, 1))
    )

    async def listed(**fields: Any) -> list[LeasedCommand]:
        asked = {"tenant_id": TENANT, "organization_id": ORGANIZATION, "commands_max": 10, **fields}
        found = await stores.projections.list_leased(**asked)
        return [item for item in found if item.execution_id in (live, ended)]

    other, first = await listed()
    assert (first.command_id, first.frame_id, first.lease_s) == ("1", "302", 12.0)
    assert (first.path, first.step, first.attempt) == ("demo/pft", "fetch", 1)
    assert (first.worker_id, first.started_event_id, first.heard_at) == ("w-1", "90", NOON)
    assert (other.command_id, other.frame_id, other.lease_s) == ("2", None, None)
    assert [item.command_id for item in await listed(worker_id="w-2")] == ["2"]
    assert [item.command_id for item in await listed(execution_id=live)] == ["2", "1"]
    assert await listed(execution_id=ended) == []
    assert await listed(tenant_id=TenantId("other")) == []
    assert [item.command_id for item in await listed(commands_max=1)] == ["2"]


async def test_one_frame_is_found_by_its_identity(stores: Stores) -> None:
    execution = an_execution()
    await project(stores, execution, frame=[frame_row(execution, "301"), frame_row(execution, "2")])
    frame = await stores.projections.find_frame(ExecutionId(execution), "301")
    assert frame == frame_row(execution, "301")
    assert await stores.projections.find_frame(ExecutionId(execution), "7") is None


async def test_commands_are_found_by_their_identities(stores: Stores) -> None:
    execution = an_execution()
    rows = [command_row(execution, "201"), command_row(execution, "2")]
    await project(stores, execution, command=rows)
    asked = [CommandId("2"), CommandId("7")]
    assert await stores.projections.list_commands(ExecutionId(execution), asked) == rows[1:]


async def test_rows_are_listed_page_by_page(stores: Stores) -> None:
    execution = an_execution()
    frames = [frame_row(execution, key) for key in ("7", "12", "103", "1000")]
    await project(stores, execution, frame=frames)

    async def listed(after: str | None, rows_max: int | None) -> list[str]:
        rows = await stores.projections.list_rows(
            "frame", ExecutionId(execution), after=after, rows_max=rows_max
        )
        return [row["frame_id"] for row in rows]

    assert await listed(None, None) == ["7", "12", "103", "1000"]
    assert await listed(None, 2) == ["7", "12"]
    assert await listed("12", 2) == ["103", "1000"]
    assert await listed("103", None) == ["1000"]
    assert await listed("1000", 2) == []


async def test_frames_are_listed_in_windows_of_a_stage_and_a_status(stores: Stores) -> None:
    execution = an_execution()
    frames = [
        frame_row(execution, str(1000 + n), status="COMPLETED" if n % 2 else "RUNNING")
        for n in range(5)
    ]
    await project(stores, execution, frame=frames)

    async def listed(**fields: Any) -> tuple[list[str], int]:
        values = {"stage_id": None, "status": None, "offset": 0, "frames_max": 10, **fields}
        rows, total = await stores.projections.list_frames(execution, **values)
        return [row["frame_id"] for row in rows], total

    assert await listed() == (["1000", "1001", "1002", "1003", "1004"], 5)
    assert await listed(offset=1, frames_max=2) == (["1001", "1002"], 5)
    assert await listed(status="COMPLETED") == (["1001", "1003"], 2)
    assert await listed(stage_id=frames[0]["stage_id"], frames_max=1) == (["1000"], 5)
    assert await listed(stage_id="999999") == ([], 0)
    rows, _ = await stores.projections.list_frames(
        execution, stage_id=None, status=None, offset=4, frames_max=1
    )
    assert rows == frames[4:]


async def test_frames_are_shared_out_over_bins_in_the_order_of_their_ids(stores: Stores) -> None:
    execution = an_execution()
    frames = [
        frame_row(
            execution,
            str(1000 + n),
            status="COMPLETED" if n != 3 else "FAILED",
            row_count=n,
            created_at=NOON,
            completed_at=NOON + timedelta(seconds=n) if n != 4 else None,
        )
        for n in range(7)
    ]
    await project(stores, execution, frame=frames)

    for bins_max in (1, 3, 10):
        found = await stores.projections.bin_frames(execution, bins_max=bins_max)
        assert found == bin_frames(frames, bins_max=bins_max)
    assert [item.frames for item in found.bins] == [1] * 7
    none = await stores.projections.bin_frames(an_execution(), bins_max=3)
    assert (none.bins, none.stages) == ([], [])


async def test_waits_whose_time_is_over_are_listed_those_that_began_first(stores: Stores) -> None:
    execution = an_execution()
    wait = {"wait": "time", "key": "k", "until": "2026-01-01T00:00:00Z", "timeout_s": 600.0}
    begun = {"1": 30, "2": 20, "3": 5}
    rows = [
        command_row(
            execution,
            number,
            status="PARKED",
            wait=wait,
            heard_at=datetime.now(UTC) - timedelta(minutes=minutes),
        )
        for number, minutes in begun.items()
    ]
    rows.append(command_row(execution, "4", status="RUNNING", wait=None))
    await project(stores, execution, command=rows)

    over = await stores.projections.list_overdue_waits(over_s=2.0, waits_max=9)
    assert [row["command_id"] for row in over] == ["1", "2"]
    assert over[0] == {"command_id": "1", **owned(execution)}
    late = await stores.projections.list_overdue_waits(over_s=900.0, waits_max=9)
    assert [row["command_id"] for row in late] == ["1"]
    assert len(await stores.projections.list_overdue_waits(over_s=2.0, waits_max=1)) == 1


async def test_executions_without_events_are_stalled(stores: Stores) -> None:
    stalled, fresh, ended, held = (an_execution() for _ in range(4))
    for row in (
        execution_row(stalled),
        # Its bounds in time go on counting.
        execution_row(held, status="PAUSED", updated_at=NOON + timedelta(seconds=1)),
        execution_row(fresh, updated_at=datetime.now(UTC)),
        execution_row(ended, status="FAILED"),
    ):
        await project(stores, row["execution_id"], execution=[row])

    found = await stores.projections.list_stalled(older_than_s=60.0, executions_max=10)

    # In no order: otherwise many long waits would keep others from their turn.
    found_by_id = {row["execution_id"]: row for row in found}
    assert found_by_id.keys() == {stalled, held}
    assert found_by_id[stalled] == execution_row(stalled)
