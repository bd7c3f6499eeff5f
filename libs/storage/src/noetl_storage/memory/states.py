"""Values of `state` in memory."""

from collections.abc import Iterable
from datetime import datetime

from msgspec import structs

from noetl_contracts.commands.state_values import StateChange, StateRecord
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.ledger.records import OwnedStateChange
from noetl_storage.memory.store import MemoryStore
from noetl_storage.ports.errors import StateMoved


class MemoryStates:
    """Keeps every change of each state, the latest last."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def find_state(
        self, path: str, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> StateRecord | None:
        """Return the present value of a state, or None before it has one."""
        changes = self._store.state_changes.get((tenant_id, organization_id, path, name))
        if not changes:
            return None
        return StateRecord(name=name, value=changes[-1].value, revision=changes[-1].revision)

    async def change_state(self, change: OwnedStateChange) -> None:
        """Change a value outside an execution; raises `StateMoved`."""
        check_changes(self._store, [change])
        write_changes(self._store, [change], self._store.now())

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
        place = (tenant_id, organization_id, path, name)
        changes = self._store.state_changes.get(place)
        if not changes or changes[-1].revision != revision:
            raise StateMoved(f"a state has moved on since it was read: {path} {name}")
        del self._store.state_changes[place]

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
        states = [
            changes[-1]
            for place, changes in sorted(self._store.state_changes.items())
            if place[:2] == (tenant_id, organization_id)
            and path in {None, place[2]}
            and place[2:] > after
        ]
        return states[:states_max]

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
        changes = self._store.state_changes.get((tenant_id, organization_id, path, name), [])
        latest_changes = [
            change for change in reversed(changes) if before is None or change.revision < before
        ]
        return latest_changes[:changes_max]


def check_changes(store: MemoryStore, changes: Iterable[OwnedStateChange]) -> None:
    """Refuse changes of which one does not follow the present revision; raises `StateMoved`."""
    places = set()
    for owned_change in changes:
        place = _get_place(owned_change)
        present_changes = store.state_changes.get(place, [])
        revision = present_changes[-1].revision if present_changes else 0
        if place in places or owned_change.change.revision != revision + 1:
            raise StateMoved(f"a state has moved on since it was read: {' '.join(place[2:])}")
        places.add(place)


def write_changes(store: MemoryStore, changes: Iterable[OwnedStateChange], now: datetime) -> None:
    """Write changes that were checked."""
    for owned in changes:
        store.state_changes.setdefault(_get_place(owned), []).append(
            structs.replace(owned.change, changed_at=now)
        )


def _get_place(owned: OwnedStateChange) -> tuple[str, str, str, str]:
    return owned.tenant_id, owned.organization_id, owned.change.path, owned.change.name
