"""Stored results and what led to them, beside the surfaces of the read models."""

from typing import Any

import msgspec
from tests.support.storage import NOON, ORGANIZATION, TENANT, Stores, an_execution

from noetl_contracts import locators
from noetl_contracts.ids import ExecutionId
from noetl_contracts.payloads import PayloadRef
from noetl_replay import rows, state

Row = dict[str, Any]


def rows_of(execution: ExecutionId) -> list[Row]:
    begun = state.build_empty_state(execution, TENANT, ORGANIZATION)
    begun.started_at = begun.updated_at = NOON
    return [rows.build_execution_row(begun)]


def result(execution: str, number: int, *, parent: int | None = None, step: str = "s") -> Row:
    return {
        "ref_id": execution[:-2] + f"{number:02}",
        "execution_id": execution,
        "tenant_id": TENANT,
        "organization_id": ORGANIZATION,
        "run_id": f"{number}",
        "step_name": step,
        "is_error": False,
        "entered_version": number,
        "reference": msgspec.to_builtins(a_ref(number)),
        "parent_ref_id": None if parent is None else execution[:-2] + f"{parent:02}",
        "created_at": NOON,
    }


def a_ref(number: int) -> PayloadRef:
    sha256 = f"{number:064x}"
    return PayloadRef(
        uri=locators.build_payload_locator(TENANT, ORGANIZATION, sha256),
        sha256=sha256,
        media_type="application/json",
        payload_bytes=number,
    )


async def test_stored_results_come_with_their_batch_and_are_walked_back(stores: Stores) -> None:
    execution, other = an_execution(), an_execution()
    results = [
        result(execution, 1, step="fetch"),
        result(execution, 2, parent=1, step="clean"),
        result(execution, 3, parent=2, step="clean"),
        # What led to it was projected by a release that wrote no results.
        result(execution, 4, parent=99, step="late"),
    ]
    written = {"execution": [*rows_of(execution), *rows_of(other)]}
    for _ in range(2):
        # The second time the positions are not believed, and nothing of it is written.
        await stores.projections.apply_rows(
            shard=0,
            rows=written,
            positions={execution: (0, 4), other: (7, 9)},
            results=[*results, result(other, 1)],
        )

    links = await stores.projections.trace_results(execution, "clean", links_max=9)

    assert [(link.step, link.run_id, link.reference) for link in links] == [
        ("clean", "3", a_ref(3)),
        ("clean", "2", a_ref(2)),
        ("fetch", "1", a_ref(1)),
    ]
    assert [link.parent_ref_id for link in links] == [*(link.ref_id for link in links[1:]), None]
    assert len(await stores.projections.trace_results(execution, "clean", links_max=2)) == 2
    (late,) = await stores.projections.trace_results(execution, "late", links_max=9)
    assert late.parent_ref_id == result(execution, 99)["ref_id"]
    assert await stores.projections.trace_results(other, "s", links_max=9) == []
    assert await stores.rebuilds.list_results(execution) == results


async def test_stored_results_are_replaced_and_cleared_with_their_execution(
    stores: Stores,
) -> None:
    execution, other = an_execution(), an_execution()
    for item in (execution, other):
        await stores.projections.apply_rows(
            shard=0,
            rows={"execution": rows_of(item)},
            positions={item: (0, 1)},
            results=[result(item, 1), result(item, 2, parent=1)],
        )
    await stores.rebuilds.replace_rows(
        shard=0,
        execution_id=execution,
        rows={"execution": rows_of(execution)},
        version=1,
        results=[result(execution, 5)],
    )
    assert await stores.rebuilds.list_results(execution) == [result(execution, 5)]
    await stores.projections.clear_execution(execution)
    assert await stores.rebuilds.list_results(execution) == []
    assert len(await stores.rebuilds.list_results(other)) == 2
