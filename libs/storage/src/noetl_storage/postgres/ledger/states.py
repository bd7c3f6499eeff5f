"""Values of `state` on PostgreSQL."""

from collections.abc import Iterable

import asyncpg

from noetl_contracts.commands.state_values import (
    StateChange,
    StateRecord,
    StateType,
    StateValue,
    parse_state_value,
)
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import OwnedStateChange
from noetl_storage.postgres import event_rows, queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("states")


class PostgresStates:
    """Reads with plain queries; changes through `noetl.change_states`, which alone may."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_state(
        self, path: str, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> StateRecord | None:
        """Return the present value of a state, or None before it has one."""
        record = await self._database.find_row(
            _QUERIES["find"], tenant_id, organization_id, path, name
        )
        if record is None:
            return None
        return StateRecord(
            name=record["name"], value=_build_value(record), revision=record["revision"]
        )

    async def change_state(self, change: OwnedStateChange) -> None:
        """Change a value outside an execution; raises `StateMoved`."""
        await self._database.get_row(_QUERIES["change"], build_change_rows([change]))

    async def remove_state(
        self,
        path: str,
        name: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        revision: int,
    ) -> None:
        """Remove a state and its changes; raises `StateMoved`."""
        await self._database.get_row(
            _QUERIES["remove"], tenant_id, organization_id, path, name, revision
        )

    async def list_states(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        path: str | None = None,
        after: tuple[str, str] = ("", ""),
        states_max: int,
    ) -> list[StateChange]:
        """Return the latest change of each state, by path and name, perhaps of one playbook."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_states"], tenant_id, organization_id, path, *after, states_max
        )
        return [_build_change(record) for record in rows]

    async def list_changes(
        self,
        path: str,
        name: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        before: int | None = None,
        changes_max: int,
    ) -> list[StateChange]:
        """Return changes of a state, the latest first, perhaps those before a revision."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_changes"], tenant_id, organization_id, path, name, before, changes_max
        )
        return [_build_change(record) for record in rows]


def build_change_rows(changes: Iterable[OwnedStateChange]) -> list[event_rows.Columns]:
    """Split changes into the values of a `noetl.new_state` each."""
    return [
        (
            owned.tenant_id,
            owned.organization_id,
            owned.change.path,
            owned.change.name,
            owned.change.revision,
            str(owned.change.value.type),
            str(owned.change.value.value),
            None if owned.change.execution_id is None else int(owned.change.execution_id),
            owned.change.step,
            owned.change.changed_by,
            owned.change.reason,
        )
        for owned in changes
    ]


def _build_value(record: asyncpg.Record) -> StateValue:
    return parse_state_value(record["value"], StateType(record["type"]))


def _build_change(record: asyncpg.Record) -> StateChange:
    execution_id = record["execution_id"]
    return StateChange(
        path=record["path"],
        name=record["name"],
        value=_build_value(record),
        revision=record["revision"],
        execution_id=None if execution_id is None else ExecutionId(str(execution_id)),
        step=record["step"],
        changed_by=record["changed_by"],
        reason=record["reason"],
        changed_at=record["changed_at"],
    )
