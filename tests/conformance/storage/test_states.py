"""Values of `state` move with the events that say so, from the revision that was read."""

from typing import Any

import pytest
from msgspec import structs
from tests.support.storage import (
    ORGANIZATION,
    TENANT,
    Stores,
    a_fence,
    a_run,
    a_stream,
    an_append,
    an_execution,
)

from noetl_contracts.commands.state_values import (
    StateChange,
    StateRecord,
    StateType,
    StateValue,
)
from noetl_contracts.ids import ExecutionId, OrganizationId
from noetl_contracts.ledger.records import Append, OwnedStateChange, ShardFence
from noetl_storage.ports.errors import StateMoved, VersionConflict

SCOPE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}


def number(value: int) -> StateValue:
    return StateValue(type=StateType.INTEGER, value=value)


def a_change(value: int, revision: int, **changes: Any) -> OwnedStateChange:
    values: dict[str, Any] = {"path": "p", "name": "orders", "changed_by": "ann", "reason": "again"}
    change = StateChange(value=number(value), revision=revision, **{**values, **changes})
    return OwnedStateChange(change=change, **SCOPE)


def by(execution: ExecutionId, value: int, revision: int) -> OwnedStateChange:
    told: dict[str, Any] = {"changed_by": None, "reason": None, "step": "load"}
    return a_change(value, revision, execution_id=execution, **told)


def appending(fence: ShardFence, execution: ExecutionId, *states: OwnedStateChange) -> Append:
    batch = an_append(fence, a_stream(execution, [a_run()]))
    return structs.replace(batch, states=list(states))


async def test_a_state_has_no_value_before_its_first_change(stores: Stores) -> None:
    assert await stores.states.find_state("p", "orders", **SCOPE) is None


async def test_a_change_is_written_with_its_events(stores: Stores) -> None:
    execution = an_execution()
    await stores.ledger.append(appending(await a_fence(stores), execution, by(execution, 7, 1)))
    state = await stores.states.find_state("p", "orders", **SCOPE)
    assert state == StateRecord(name="orders", value=number(7), revision=1)
    (change,) = await stores.states.list_changes("p", "orders", **SCOPE, changes_max=9)
    assert (change.execution_id, change.step) == (execution, "load")
    assert change.changed_at is not None


@pytest.mark.parametrize("revision", [1, 3])
async def test_a_change_that_does_not_follow_leaves_nothing_behind(
    stores: Stores, revision: int
) -> None:
    fence, execution = await a_fence(stores), an_execution()
    await stores.states.change_state(a_change(7, 1))
    with pytest.raises(StateMoved, match="moved on since it was read: p orders"):
        await stores.ledger.append(appending(fence, execution, by(execution, 9, revision)))
    assert await stores.ledger_reader.find_head(execution) is None
    state = await stores.states.find_state("p", "orders", **SCOPE)
    assert state == StateRecord(name="orders", value=number(7), revision=1)
    assert len(await stores.states.list_changes("p", "orders", **SCOPE, changes_max=9)) == 1


async def test_events_that_are_refused_move_no_state(stores: Stores) -> None:
    fence, execution = await a_fence(stores), an_execution()
    await stores.ledger.append(appending(fence, execution))
    with pytest.raises(VersionConflict):
        await stores.ledger.append(appending(fence, execution, by(execution, 9, 1)))
    assert await stores.states.find_state("p", "orders", **SCOPE) is None


async def test_one_transaction_does_not_move_a_state_twice(stores: Stores) -> None:
    fence, execution = await a_fence(stores), an_execution()
    with pytest.raises(StateMoved):
        await stores.ledger.append(
            appending(fence, execution, by(execution, 7, 1), by(execution, 8, 2))
        )
    assert await stores.states.find_state("p", "orders", **SCOPE) is None


async def test_changes_are_listed_from_the_latest_and_by_pages(stores: Stores) -> None:
    for revision in (1, 2, 3):
        await stores.states.change_state(a_change(revision * 10, revision))
    listed = await stores.states.list_changes("p", "orders", **SCOPE, changes_max=2)
    assert [item.revision for item in listed] == [3, 2]
    rest = await stores.states.list_changes("p", "orders", **SCOPE, before=2, changes_max=2)
    assert [(item.value, item.changed_by, item.reason) for item in rest] == [
        (number(10), "ann", "again")
    ]


async def test_states_are_listed_by_path_and_name(stores: Stores) -> None:
    for path, name in (("q", "a"), ("p", "b"), ("p", "a")):
        await stores.states.change_state(a_change(1, 1, path=path, name=name))
    await stores.states.change_state(a_change(2, 2, path="p", name="b"))
    listed = await stores.states.list_states(**SCOPE, states_max=9)
    assert [(item.path, item.name, item.revision) for item in listed] == [
        ("p", "a", 1),
        ("p", "b", 2),
        ("q", "a", 1),
    ]
    rest = await stores.states.list_states(**SCOPE, after=("p", "a"), states_max=1)
    assert [(item.path, item.name) for item in rest] == [("p", "b")]
    of_one = await stores.states.list_states(**SCOPE, path="q", states_max=9)
    assert [item.path for item in of_one] == ["q"]


async def test_a_state_belongs_to_its_organization(stores: Stores) -> None:
    await stores.states.change_state(a_change(7, 1))
    other = {**SCOPE, "organization_id": OrganizationId("east")}
    assert await stores.states.find_state("p", "orders", **other) is None
    assert await stores.states.list_states(**other, states_max=9) == []


@pytest.mark.parametrize(
    "value",
    [
        StateValue(type=StateType.INTEGER, value=-(2**63)),
        StateValue(type=StateType.TIMESTAMP, value="2024-01-01T10:00:00.123456789+00:00"),
        StateValue(type=StateType.DATE, value="2024-02-29"),
        StateValue(type=StateType.TEXT, value="a' é \n"),
    ],
)
async def test_every_type_comes_back_as_it_was(stores: Stores, value: StateValue) -> None:
    change = structs.replace(a_change(0, 1).change, value=value)
    await stores.states.change_state(OwnedStateChange(change=change, **SCOPE))
    state = await stores.states.find_state("p", "orders", **SCOPE)
    assert state == StateRecord(name="orders", value=value, revision=1)


async def test_a_state_is_removed_at_the_revision_that_was_looked_at(stores: Stores) -> None:
    await stores.states.change_state(a_change(7, 1))
    await stores.states.change_state(a_change(8, 2))
    with pytest.raises(StateMoved):
        await stores.states.remove_state("p", "orders", **SCOPE, revision=1)
    other = {**SCOPE, "organization_id": OrganizationId("east")}
    with pytest.raises(StateMoved):
        await stores.states.remove_state("p", "orders", **other, revision=2)
    await stores.states.remove_state("p", "orders", **SCOPE, revision=2)
    assert await stores.states.find_state("p", "orders", **SCOPE) is None
    assert await stores.states.list_changes("p", "orders", **SCOPE, changes_max=9) == []
    # A run that read the removed one may not move what begins anew.
    with pytest.raises(StateMoved):
        await stores.states.change_state(a_change(9, 3))
    await stores.states.change_state(a_change(9, 1))
