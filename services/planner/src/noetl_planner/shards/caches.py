"""States and programs kept in memory: accelerators that may be dropped at any time."""

from collections.abc import Iterator, Mapping
from typing import Any

from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import CatalogEntry
from noetl_contracts.lru_cache import LruCache
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.requests.facts import ExecutionRequested, FactBatch
from noetl_planner.domain.decision.program import Program
from noetl_playbook.model.playbook import Playbook
from noetl_replay import snapshot
from noetl_replay.fold import fold_history
from noetl_replay.state import ExecutionState, build_empty_state, take_changes
from noetl_storage.arrow import result_values
from noetl_storage.ports.ledger_ports import LedgerReader, Payloads, Snapshots
from noetl_storage.ports.registry_ports import Catalog

_PAGE_EVENTS = 1000
_PROGRAMS_MAX = 256
# Late facts about what has ended are few, and come soon.
_ENDED_MAX = 32

_Place = tuple[TenantId, OrganizationId, str, int | None]


class PlaybookMissing(Permanent):
    """An execution names a playbook version that the catalog does not hold."""


class ForeignExecution(Permanent):
    """Facts name an execution of another tenant or organization."""


class StateCache:
    """Folded executions, the latest used kept; of those that have ended only a few."""

    def __init__(self, *, ledger: LedgerReader, snapshots: Snapshots, states_max: int) -> None:
        self._ledger = ledger
        self._snapshots = snapshots
        self._states = LruCache[ExecutionId, ExecutionState](entries_max=states_max)
        self._ended = LruCache[ExecutionId, ExecutionState](entries_max=_ENDED_MAX)

    async def take_state(self, batch: FactBatch, *, is_beginning: bool = False) -> ExecutionState:
        """Take a state out: who takes it puts it back once what it led to is committed.

        With `is_beginning` a history is believed not to exist; the append finds out if it does.
        Raises `ForeignExecution`.
        """
        state = self._find_state(batch.execution_id)
        if state is None and is_beginning:
            return build_empty_state(batch.execution_id, batch.tenant_id, batch.organization_id)
        if state is None:
            state = await self._load_state(batch)
        _check_state_owner(state, batch)
        self.drop_state(batch.execution_id)
        return state

    def put_state_back(self, state: ExecutionState) -> bool:
        """Keep a state; what it has touched is for projectors and not kept.

        False when a later one is kept: what was begun beside the turns may have gone on meanwhile.
        """
        take_changes(state)
        cached_state = self._find_state(state.execution_id)
        if cached_state is not None and cached_state.version > state.version:
            return False
        self.drop_state(state.execution_id)
        cache = self._ended if state.is_terminal() else self._states
        cache.keep_value(state.execution_id, state)
        return True

    def drop_state(self, execution_id: ExecutionId) -> None:
        """Forget a state that may be wrong."""
        self._states.drop_value(execution_id)
        self._ended.drop_value(execution_id)

    def _find_state(self, execution_id: ExecutionId) -> ExecutionState | None:
        return self._states.find_value(execution_id) or self._ended.find_value(execution_id)

    async def _load_state(self, batch: FactBatch) -> ExecutionState:
        remembered = snapshot.restore_state(await self._snapshots.find_snapshot(batch.execution_id))
        state = remembered or build_empty_state(
            batch.execution_id, batch.tenant_id, batch.organization_id
        )
        while True:
            page = await self._ledger.read_events(
                batch.execution_id, after_version=state.version, events_max=_PAGE_EVENTS
            )
            if page and state.version == 0:
                first = page[0]
                state = build_empty_state(
                    batch.execution_id, first.tenant_id, first.organization_id
                )
            state = fold_history(state, page)
            take_changes(state)
            if len(page) < _PAGE_EVENTS:
                return state


def _check_state_owner(state: ExecutionState, batch: FactBatch) -> None:
    if (state.tenant_id, state.organization_id) != (batch.tenant_id, batch.organization_id):
        raise ForeignExecution(
            f"execution {batch.execution_id} is not of {batch.tenant_id}/{batch.organization_id}"
        )


class ProgramCache:
    """Playbooks with their graphs, by catalog identity."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._programs = LruCache[str, Program](entries_max=_PROGRAMS_MAX)
        # A registered version never changes, so its identity is asked for once.
        self._id_by_place = LruCache[_Place, str](entries_max=_PROGRAMS_MAX)

    async def get_program(self, state: ExecutionState, batch: FactBatch) -> Program:
        """Return the program of an execution, begun or about to begin."""
        if state.version > 0:
            return await self.get_begun_program(state)
        execution_requested = next(
            (fact for fact in batch.facts if isinstance(fact, ExecutionRequested)), None
        )
        if execution_requested is None:
            raise PlaybookMissing(
                f"execution {batch.execution_id} has no history and was not requested"
            )
        place = (
            batch.tenant_id,
            batch.organization_id,
            execution_requested.path,
            execution_requested.version,
        )
        program = self._programs.find_value(self._id_by_place.find_value(place) or "")
        return program or await self._find_program(place)

    async def _find_program(self, place: _Place) -> Program:
        tenant_id, organization_id, path, version = place
        entry = await self._catalog.find_playbook(
            path, tenant_id=tenant_id, organization_id=organization_id, version=version
        )
        if entry is None:
            which = "" if version is None else f" in version {version}"
            raise PlaybookMissing(
                f"no playbook is registered as {path!r}{which}: noetl register FILE"
            )
        if version is not None:
            self._id_by_place.keep_value(place, entry.catalog_id)
        return self._programs.find_value(entry.catalog_id) or self._keep_program(entry)

    async def get_begun_program(self, state: ExecutionState) -> Program:
        """Return the program of an execution that has a history."""
        program = self._programs.find_value(state.catalog_id)
        return program or self._keep_program(await self._catalog.get_entry(state.catalog_id))

    def _keep_program(self, entry: CatalogEntry) -> Program:
        program = Program(
            codec.convert_value(entry.model, Playbook),
            catalog_id=entry.catalog_id,
            catalog_version=entry.version,
            digest=entry.digest,
        )
        self._programs.keep_value(entry.catalog_id, program)
        return program


class PayloadCache:
    """Payload values that templates on the control plane have asked for, the latest used kept."""

    def __init__(self, payloads: Payloads, *, bytes_max: int) -> None:
        self._payloads = payloads
        # The size of a payload stands with its value, which may be None.
        self._payload_by_digest: LruCache[str, tuple[int, Any]] = LruCache(weight_max=bytes_max)

    async def load_payload(self, ref: PayloadRef) -> None:
        """Read a payload and keep its value, at least until the next one is read."""
        value = await result_values.load_value(self._payloads.read_payload, ref)
        size = ref.payload_bytes
        self._payload_by_digest.keep_value(ref.sha256, (size, value), weight=size)

    def get_value(self, digest: str) -> tuple[int, Any]:
        """Return a kept value behind its size; raises `KeyError`."""
        payload = self._payload_by_digest.find_value(digest)
        if payload is None:
            raise KeyError(digest)
        return payload


class DecisionValues(Mapping[str, Any]):
    """Values that one decision has read, by digest: they stay when the cache drops them."""

    def __init__(self, loaded: PayloadCache) -> None:
        self._loaded = loaded
        self._values: dict[str, Any] = {}
        self._bytes = 0

    async def load_payload(self, ref: PayloadRef) -> bool:
        """Read a payload that is not there; False when it is not there afterwards either."""
        await self._loaded.load_payload(ref)
        return ref.sha256 in self

    def has_room_for(self, ref: PayloadRef, *, bytes_max: int, values_max: int) -> bool:
        """Tell whether there may be one more."""
        return len(self._values) < values_max and self._bytes + ref.payload_bytes <= bytes_max

    def __getitem__(self, digest: str) -> Any:
        if digest not in self._values:
            size, self._values[digest] = self._loaded.get_value(digest)
            self._bytes += size
        return self._values[digest]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
