"""The planner's API over memory, and histories for it to show."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct, structs
from tests.support import storage

from noetl_chassis.clock import SystemClock
from noetl_chassis.identity import SnowflakeIds
from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_contracts.events import Event
from noetl_contracts.events.execution_events import (
    ExecutionEnd,
    PlaybookCompleted,
    PlaybookInitialized,
)
from noetl_contracts.events.step_events import StepEnter, StepExit
from noetl_contracts.ids import CatalogId, ExecutionId, RunId
from noetl_contracts.ledger.records import ShardFence
from noetl_contracts.status import RunStatus
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.broker_settings import MemoryBrokerSettings
from noetl_messaging.memory.consumer import MemoryBacklogs
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Message
from noetl_planner.api.http.quota_board import QuotaBoard
from noetl_planner.api.http.service_groups import (
    AdmissionLimits,
    HistoryStores,
    IdentityServices,
    MessageServices,
    PlaybookServices,
    RegistryStores,
    ShardServices,
)
from noetl_planner.api.http.services import ApiServices
from noetl_planner.domain.decision.idempotency_keys import build_event_key
from noetl_planner.identity.access_resolver import AccessResolver
from noetl_planner.identity.authenticator import Authenticator
from noetl_planner.identity.author_access import AuthorAccess
from noetl_planner.identity.denials import DenialLog
from noetl_planner.identity.principals import build_system_access
from noetl_planner.shards.caches import ProgramCache
from noetl_planner.shards.store_waits import StoreWaits
from noetl_planner.shards.worker_presence import WorkerPresence
from noetl_replay import fold, rows, state
from noetl_storage.memory.business_objects import MemoryBusinessObjects
from noetl_storage.memory.durability import MemoryDurability
from noetl_storage.memory.history_pages import MemoryHistoryPages
from noetl_storage.memory.holds import MemoryHolds
from noetl_storage.memory.identities import MemoryAdministrationLog, MemoryIdentities, MemoryQuotas
from noetl_storage.memory.leases import MemoryShardLeases
from noetl_storage.memory.ledger import MemoryLedger, MemoryLedgerAudit
from noetl_storage.memory.lineage import MemoryLineageHistories
from noetl_storage.memory.notifications import MemoryNotifications
from noetl_storage.memory.outbox import MemoryDeadLetterLog, MemoryOutbox, MemoryRequests
from noetl_storage.memory.projections import MemoryProjections
from noetl_storage.memory.registry import (
    MemoryCatalog,
    MemoryCredentials,
    MemoryPast,
    MemorySnapshots,
)
from noetl_storage.memory.states import MemoryStates
from noetl_storage.memory.store import MemoryStore
from noetl_storage.memory.triggers import (
    MemorySchedules,
    MemoryTriggers,
    MemoryWebhooks,
)
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.ports.payload_ports import PayloadTier

SHARD_COUNT = 16
SECRET_KEY = base64.b64encode(bytes(range(32))).decode()
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: demo/hello, description: says hello}
workload: {who: world, deep: {}, kind: "", of: "", id: "", n: 0, big: 0}
workflow:
  - step: start
    tool: {kind: noop}
"""


class SilentHints:
    """Hints that only remember what was poked, and what was watched."""

    def __init__(self) -> None:
        self.poked: list[str] = []
        self.watched: list[str] = []

    async def notify(self, subject: str) -> None:
        self.poked.append(subject)

    async def listen_for_hints(self, subject: str) -> AsyncIterator[None]:
        if subject in self.poked:
            yield None

    async def subscribe_tokens(self, prefix: str) -> AsyncIterator[str]:
        for subject in self.poked:
            if subject.rpartition(".")[0] == prefix:
                yield subject.rpartition(".")[2]

    async def broadcast(self, subject: str, data: bytes) -> None:
        self.poked.append(subject)

    async def subscribe(self, subject: str) -> AsyncIterator[bytes]:
        if subject in self.poked:
            yield b""

    @asynccontextmanager
    async def watch_hints(
        self, subject: str, woken: asyncio.Event | None = None
    ) -> AsyncIterator[asyncio.Event]:
        self.watched.append(subject)
        yield woken or asyncio.Event()


class ClosedBus:
    """A publisher that nobody answers, so that only the outbox is left."""

    async def publish_message(self, message: Message) -> None:
        raise MessagingUnavailable(f"nobody takes {message.subject}")

    async def publish_batch(self, messages: Sequence[Message]) -> list[bool]:
        return [False for _ in messages]


GROUPS: dict[str, type[Struct]] = {
    "identity": IdentityServices,
    "history": HistoryStores,
    "playbooks": PlaybookServices,
    "registry": RegistryStores,
    "messages": MessageServices,
    "shards": ShardServices,
    "admission": AdmissionLimits,
}


def replace_services(services: ApiServices, **changes: Any) -> ApiServices:
    """Change fields of services, each in the group that has it."""
    for name, group in GROUPS.items():
        fields = changes.keys() & set(group.__struct_fields__)
        if fields:
            inside = {field: changes.pop(field) for field in fields}
            changes[name] = structs.replace(getattr(services, name), **inside)
    return structs.replace(services, **changes)


def _group_services(values: dict[str, Any]) -> ApiServices:
    """Put each value into the group that has a field of its name."""
    built: dict[str, Any] = {}
    for name, group in GROUPS.items():
        fields = values.keys() & set(group.__struct_fields__)
        built[name] = group(**{field: values.pop(field) for field in fields})
    return ApiServices(**values, **built)


@dataclass
class ApiWorld:
    """Everything behind one API; tests play the planner and the projector by hand."""

    store: MemoryStore = field(default_factory=lambda: MemoryStore(clock=storage.WallClock()))
    payloads: MemoryPayloads = field(default_factory=MemoryPayloads)
    hints: SilentHints = field(default_factory=SilentHints)
    problems: dict[str, str] = field(default_factory=dict)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    broker: MemoryBroker = field(
        default_factory=lambda: MemoryBroker(
            topology.declare_topology(shard_count=1), SystemClock()
        )
    )

    def __post_init__(self) -> None:
        self.ledger = MemoryLedger(self.store)
        self.projections = MemoryProjections(self.store)
        self.catalog = MemoryCatalog(self.store)
        self.requests = MemoryRequests(self.store)
        self.holds = MemoryHolds(self.store)
        self.identities = MemoryIdentities(self.store)
        self.administration = MemoryAdministrationLog(self.store)
        self.quotas = MemoryQuotas(self.store)
        self.fence: ShardFence | None = None

    async def _list_problems(self) -> dict[str, str]:
        return self.problems

    def services(self, **changes: Any) -> ApiServices:
        clock = SystemClock()
        values: dict[str, Any] = {
            "authenticator": Authenticator(
                self.identities, clock, is_off=True, sign_in=changes.get("sign_in")
            ),
            "identities": self.identities,
            "administration": self.administration,
            "quotas": self.quotas,
            "quota_board": QuotaBoard(self.quotas),
            "requests": self.requests,
            "outbox_backlog": MemoryOutbox(self.store),
            "durability": MemoryDurability(),
            "projections": self.projections,
            "ledger": self.ledger,
            "catalog": self.catalog,
            "credentials": MemoryCredentials(self.store),
            "schedules": MemorySchedules(self.store),
            "notifications": MemoryNotifications(self.store),
            "webhooks": MemoryWebhooks(self.store),
            "triggers": MemoryTriggers(self.store),
            "dead_letters": MemoryDeadLetters(self.broker),
            "dead_letter_log": MemoryDeadLetterLog(self.store),
            "states": MemoryStates(self.store),
            "payloads": self.payloads,
            "store_tier": PayloadTier.MEMORY,
            "hints": self.hints,
            "worker_presence": WorkerPresence(clock),
            "store_waits": StoreWaits(clock),
            "backlogs": MemoryBacklogs(self.broker),
            "broker_settings": MemoryBrokerSettings(),
            "publisher": ClosedBus(),
            "clock": clock,
            "mint": SnowflakeIds(node=7, clock=clock).next_id,
            "sealer": CredentialSealer(SECRET_KEY),
            "shard_count": SHARD_COUNT,
            "programs": ProgramCache(self.catalog),
            "snapshots": MemorySnapshots(self.store),
            "audit": MemoryLedgerAudit(self.store),
            "past_snapshots": MemoryPast(self.store),
            "holds": self.holds,
            "lineage": MemoryLineageHistories(self.store),
            "objects": MemoryBusinessObjects(self.store),
            "pages": MemoryHistoryPages(self.store),
            "tenant_id": storage.TENANT,
            "organization_id": storage.ORGANIZATION,
            "list_problems": self._list_problems,
            "stop": self.stop,
        }
        values |= changes
        place = values["tenant_id"], values["organization_id"]
        values.setdefault("access", build_system_access(*place))
        values.setdefault(
            "access_resolver",
            AccessResolver(self.identities, tenant_id=place[0], organization_id=place[1]),
        )
        values.setdefault(
            "authors",
            AuthorAccess(
                self.identities,
                values["access_resolver"],
                clock,
                denials=DenialLog(self.administration, clock),
            ),
        )
        return _group_services(values)

    async def append(
        self,
        execution_id: ExecutionId,
        events: list[Event],
        *,
        has_keys: bool = False,
        **fields: object,
    ) -> None:
        """Play the planner; with `has_keys` every event is found by its key.

        `fields` are of every envelope.
        """
        if self.fence is None:
            held = await MemoryShardLeases(self.store).claim_shards(
                owner="test", lease_s=600, shards_max=1, shard_count=SHARD_COUNT
            )
            self.fence = ShardFence(shard=held[0].shard, owner="test", epoch=held[0].epoch)
        head = await self.ledger.find_head(execution_id)
        after, checksum = (0, "") if head is None else (head.version, head.checksum)
        named = [
            build_event_key(event)
            if has_keys or isinstance(event, ExecutionEnd | PlaybookInitialized)
            else None
            for event in events
        ]
        stream = storage.a_stream(
            execution_id, events, after=after, checksum=checksum, keys=named, **fields
        )
        await self.ledger.append(storage.an_append(self.fence, stream))

    def forget_history(self, execution_id: ExecutionId) -> None:
        """Play retention: the events are gone, the projection stays."""
        del self.store.history_by_execution[execution_id]

    async def project(self, execution_id: ExecutionId) -> None:
        """Play the projector, from the beginning."""
        await self.projections.clear_execution(execution_id)
        history = await self.ledger.read_events(execution_id)
        folded = state.build_empty_state(execution_id, storage.TENANT, storage.ORGANIZATION)
        for envelope in history:
            folded = fold.fold_event(folded, envelope)
        changes = state.take_changes(folded)
        await self.projections.apply_rows(
            shard=0,
            rows=rows.build_changed_rows(folded, changes),
            results=rows.build_result_rows(folded, changes),
            positions={execution_id: (0, len(history))},
        )


def beginning(path: str = "demo/hello") -> list[Event]:
    """The first events of a run."""
    return [
        PlaybookInitialized(
            path=path,
            catalog_id=CatalogId("1"),
            catalog_version=1,
            playbook_digest="d",
            entry_step="start",
            workload={"who": "world"},
        ),
        StepEnter(step="start", run_id=RunId("11"), activation=1),
    ]


def ending() -> list[Event]:
    """The last events of a run that went well."""
    return [
        StepExit(step="start", run_id=RunId("11"), status=RunStatus.COMPLETED),
        PlaybookCompleted(step="start"),
    ]
