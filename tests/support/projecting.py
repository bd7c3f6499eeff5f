"""A ledger, a bus and any number of projectors between them."""

import secrets
from collections.abc import Iterable

from tests.support.builders import ORGANIZATION, TENANT, History
from tests.support.bus import Bus
from tests.support.storage import Stores
from tests.support.surface_comparison import RowDifference, compare_surfaces

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec, ids, subjects
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope, EventBatch
from noetl_contracts.ledger.records import Append, ShardFence, StreamAppend
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Message
from noetl_projector.domain.policy import ProjectorPolicy
from noetl_projector.projection.stores import ProjectorStores
from noetl_projector.service import Projector
from noetl_replay import comparison, rows, state
from noetl_storage.ports.ledger_ports import LedgerReader, Projections

SHARD_COUNT = 2
OWNER = "planner-1"


class ProjectorHarness:
    """Appends to the ledger, sends messages, and compares what was projected with a replay."""

    def __init__(self, stores: Stores, bus: Bus) -> None:
        self.stores = stores
        self.bus = bus
        self._fence: ShardFence | None = None

    def projector(
        self,
        *,
        projections: Projections | None = None,
        ledger: LedgerReader | None = None,
        **policy: object,
    ) -> Projector:
        """A projector for all shards, with an empty cache."""
        chosen: dict[str, object] = {
            "execution_shard_count": SHARD_COUNT,
            "fetch_wait_s": 0.05,
            "retry_delay_s": 0.01,
            "catch_up_after_s": 0.0,
            "epoch_horizon_s": 0.0,
            "snapshot_every_versions": 10,
            "snapshot_at_end_versions": 5,
            **policy,
        }
        return Projector(
            stores=ProjectorStores(
                consumer=self.bus.consumer(
                    topology.EVENTS, topology.build_projector_consumer(index=0, count=1)
                ),
                letters=self.bus.letters,
                ledger=ledger or self.stores.ledger_reader,
                projections=projections or self.stores.projections,
                snapshots=self.stores.snapshots,
                past=self.stores.past,
                rebuilds=self.stores.rebuilds,
                checkpoints=self.stores.checkpoints,
            ),
            clock=SystemClock(),
            policy=codec.convert_value(chosen, ProjectorPolicy),
        )

    async def append(self, history: History, *, after: int = 0, until: int | None = None) -> None:
        """Write a part of a history into the ledger."""
        await self.append_stream(history.stream(after=after, until=until))

    async def append_stream(self, stream: StreamAppend) -> None:
        """Write events of one execution into the ledger."""
        fence = await self._claim()
        await self.stores.ledger.append(Append(fence=fence, streams=[stream], messages=[]))

    async def send(self, batches: Iterable[EventBatch]) -> None:
        """Send batches, each under an identity of its own so that none is dropped as a repeat."""
        for batch in batches:
            await self.send_bytes(codec.encode_json(batch), execution_id=batch.execution_id)

    async def send_bytes(self, data: bytes, *, execution_id: ExecutionId) -> None:
        shard = ids.find_shard(execution_id, SHARD_COUNT)
        await self.bus.publisher.publish_message(
            Message(
                subject=subjects.build_events_subject(shard, TENANT, ORGANIZATION),
                message_id=secrets.token_hex(8),
                data=data,
            )
        )

    async def list_differences(self, history: Iterable[Envelope]) -> list[RowDifference]:
        """Compare the stored rows with a replay of a history."""
        envelopes = list(history)
        first = envelopes[0]
        live = {
            surface: await self.stores.projections.list_rows(surface, first.execution_id)
            for surface in rows.SURFACES
        }
        begun = state.build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
        _, replayed = comparison.replay_surfaces(begun, envelopes)
        return compare_surfaces(comparison.index_live_surfaces(live), replayed)

    async def find_position(self, history: History) -> int:
        positions = await self.stores.projections.list_positions([history.execution_id])
        return positions.get(history.execution_id, 0)

    async def _claim(self) -> ShardFence:
        if self._fence is None:
            held = await self.stores.shards.claim_shards(
                owner=OWNER, lease_s=600.0, shards_max=1, shard_count=SHARD_COUNT
            )
            self._fence = ShardFence(shard=held[0].shard, owner=OWNER, epoch=held[0].epoch)
        return self._fence


async def run_dry(projector: Projector, *, turns_max: int = 100) -> int:
    """Take turns until a fetch brings nothing; return how many messages came."""
    total = 0
    for _ in range(turns_max):
        done = await projector.project_batches()
        total += done
        if not done:
            return total
    raise AssertionError(f"still busy after {turns_max} turns")
