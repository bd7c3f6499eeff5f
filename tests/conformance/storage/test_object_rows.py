"""Business objects across executions, on every adapter."""

from datetime import timedelta
from typing import Any

import pytest
from tests.support.builders import History, a_shop
from tests.support.storage import (
    NOON,
    ORGANIZATION,
    TENANT,
    Stores,
    a_fence,
    an_append,
    an_execution,
)

from noetl_contracts.ids import ExecutionId, OrganizationId
from noetl_replay import fold_control, rows
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import build_empty_state

PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
OLD, NEW = sorted((an_execution(), an_execution()), key=int)


def a_row(execution_id: str, object_id: str, minute: int, **fields: Any) -> dict[str, Any]:
    return {
        "execution_id": execution_id,
        "object_id": object_id,
        **PLACE,
        "object_type": object_id.partition("/")[0],
        "status": "open",
        "version": 1,
        "attributes": {"minute": minute},
        "payload_refs": [],
        "first_event_id": "1",
        "last_event_id": "2",
        "is_deleted": False,
        "created_at": NOON,
        "updated_at": NOON + timedelta(minutes=minute),
        **fields,
    }


async def project(stores: Stores, execution_id: ExecutionId, found: list[dict[str, Any]]) -> None:
    await stores.rebuilds.replace_rows(
        shard=0,
        execution_id=execution_id,
        rows={surface: [] for surface in rows.SURFACES} | {"business_object": found},
        version=1,
    )


@pytest.fixture
async def filled(stores: Stores) -> Stores:
    first = [
        a_row(OLD, "order/1", 1),
        a_row(OLD, "order/2", 9),
        a_row(OLD, "parcel/1", 1, is_deleted=True),
        a_row(OLD, "order/9", 1, organization_id=OrganizationId("other")),
    ]
    await project(stores, OLD, first)
    await project(stores, NEW, [a_row(NEW, "order/1", 2), a_row(NEW, "order/2", 8)])
    return stores


def shown(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["object_id"], row["execution_id"]) for row in found]


async def test_each_object_is_listed_as_it_was_left_last(filled: Stores) -> None:
    objects = await filled.objects.list_objects(**PLACE, objects_max=9)
    assert shown(objects) == [("order/1", NEW), ("order/2", OLD), ("parcel/1", OLD)]
    assert objects[0]["attributes"] == {"minute": 2}
    assert objects[0]["updated_at"] == NOON + timedelta(minutes=2)


async def test_a_list_is_narrowed_and_paged(filled: Stores) -> None:
    objects = filled.objects
    parcels = await objects.list_objects(**PLACE, object_type="parcel", objects_max=9)
    assert shown(parcels) == [("parcel/1", OLD)]
    there = await objects.list_objects(**PLACE, has_deleted=False, objects_max=9)
    assert shown(there) == [("order/1", NEW), ("order/2", OLD)]
    of_run = await objects.list_objects(**PLACE, execution_id=NEW, objects_max=9)
    assert shown(of_run) == [("order/1", NEW), ("order/2", NEW)]
    second = await objects.list_objects(**PLACE, after=("order", "order/1"), objects_max=1)
    assert shown(second) == [("order/2", OLD)]


async def test_an_object_is_found_in_every_execution_that_changed_it(filled: Stores) -> None:
    objects = filled.objects
    object_rows = await objects.list_object_rows("order", "order/2", **PLACE, rows_max=9)
    assert shown(object_rows) == [("order/2", OLD), ("order/2", NEW)]
    assert len(await objects.list_object_rows("order", "order/2", **PLACE, rows_max=1)) == 1
    assert await objects.list_object_rows("order", "order/9", **PLACE, rows_max=9) == []
    assert await objects.list_object_rows("parcel", "order/2", **PLACE, rows_max=9) == []


async def test_the_changes_of_an_object_alone_fold_to_what_it_was(stores: Stores) -> None:
    shop = History(an_execution())
    shop.add(*(envelope.event for envelope in a_shop().envelopes))
    await stores.ledger.append(an_append(await a_fence(stores), shop.stream()))
    for until in range(1, len(shop.envelopes) + 1):
        whole = HistoryReplay(build_empty_state(shop.execution_id, **PLACE))
        whole.feed_events(shop.envelopes[:until])
        for object_id in ("order/1", "order/2", "order"):
            state, after = build_empty_state(shop.execution_id, **PLACE), 0
            while page := await stores.objects.list_object_changes(
                shop.execution_id,
                object_id,
                after_version=after,
                until_version=until,
                changes_max=2,
            ):
                for item in page:
                    fold_control.apply_object_change(state, item, item.event)  # type: ignore[arg-type]  # nothing else is listed
                after = page[-1].stream_version
            thing = state.objects.get(object_id)
            row = None if thing is None else rows.build_object_row(state, thing)
            assert row == whole.surfaces["business_object"].get(object_id)


async def test_changes_are_not_listed_of_a_history_that_is_not_there(stores: Stores) -> None:
    bounds = {"after_version": 0, "until_version": 9, "changes_max": 9}
    assert await stores.objects.list_object_changes(an_execution(), "order/1", **bounds) is None
