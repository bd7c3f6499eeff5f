"""Shard leases, instances and roles in memory."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import structs

from noetl_contracts.ledger.records import ShardLease
from noetl_storage.memory.store import MemoryStore, StoredInstance, StoredRole
from noetl_storage.ports.errors import NodeNumbersExhausted

_NODE_NUMBERS = range(1024)
_NEVER = datetime.min.replace(tzinfo=UTC)


class MemoryShardLeases:
    """Leases shards by the store's clock."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def claim_shards(
        self, *, owner: str, lease_s: float, shards_max: int, shard_count: int
    ) -> list[ShardLease]:
        """Take free and expired shards up to `shards_max` held; return all that are held."""
        missing_shards = shards_max - len(self._list_held(owner))
        for shard in range(shard_count):
            lease = self._store.lease_by_shard.get(shard)
            is_free = lease is None or lease.leased_until <= self._store.now()
            if missing_shards > 0 and is_free:
                missing_shards -= 1
                self._store.lease_by_shard[shard] = ShardLease(
                    shard=shard,
                    owner=owner,
                    epoch=1 if lease is None else lease.epoch + 1,
                    leased_until=self._store.time_after(lease_s),
                )
        return self._list_held(owner)

    async def extend_leases(self, *, owner: str, lease_s: float) -> list[ShardLease]:
        """Extend what the owner still holds and return it."""
        for lease in self._list_held(owner):
            self._store.lease_by_shard[lease.shard] = structs.replace(
                lease, leased_until=self._store.time_after(lease_s)
            )
        return self._list_held(owner)

    async def release_shards(self, *, owner: str, shards: Sequence[int]) -> None:
        """Give shards back at once."""
        for shard in shards:
            lease = self._store.lease_by_shard.get(shard)
            if lease is not None and lease.owner == owner:
                self._store.lease_by_shard[shard] = structs.replace(
                    lease, owner="", leased_until=_NEVER
                )

    async def list_owners(self) -> dict[str, int]:
        """Return every owner with a live lease and how many shards it holds."""
        now = self._store.now()
        owners = [
            lease.owner for lease in self._store.lease_by_shard.values() if lease.leased_until > now
        ]
        return dict(Counter(owners))

    def _list_held(self, owner: str) -> list[ShardLease]:
        now = self._store.now()
        return [
            lease
            for _, lease in sorted(self._store.lease_by_shard.items())
            if lease.owner == owner and lease.leased_until > now
        ]


class MemoryInstances:
    """Leases node numbers and roles by the store's clock."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def register_instance(self, *, instance: str, kind: str, lease_s: float) -> int:
        """Lease or extend a node number (0 to 1023) that no other live instance holds."""
        stored_instance = self._store.instance_by_name.get(instance)
        is_live = stored_instance is not None and stored_instance.leased_until > self._store.now()
        number = (
            stored_instance.node_number
            if stored_instance is not None and is_live
            else self._choose_free_number()
        )
        self._store.instance_by_name[instance] = StoredInstance(
            kind=kind, node_number=number, leased_until=self._store.time_after(lease_s)
        )
        return number

    async def list_live_instances(self, kind: str) -> list[str]:
        """Return the live instances of a service."""
        now = self._store.now()
        return sorted(
            name
            for name, stored_instance in self._store.instance_by_name.items()
            if stored_instance.kind == kind and stored_instance.leased_until > now
        )

    async def claim_role(self, *, role: str, owner: str, lease_s: float) -> bool:
        """Take or extend the lease on a role; False while another owner holds it."""
        stored_role = self._store.leader_by_role.get(role)
        is_taken = (
            stored_role is not None
            and stored_role.owner != owner
            and stored_role.leased_until > self._store.now()
        )
        if is_taken:
            return False
        self._store.leader_by_role[role] = StoredRole(
            owner=owner, leased_until=self._store.time_after(lease_s)
        )
        return True

    def _choose_free_number(self) -> int:
        """Choose the number that nobody has held for longest."""
        last_held = dict.fromkeys(_NODE_NUMBERS, _NEVER)
        for stored_instance in self._store.instance_by_name.values():
            number = stored_instance.node_number
            last_held[number] = max(last_held[number], stored_instance.leased_until)
        number = min(_NODE_NUMBERS, key=lambda candidate: (last_held[candidate], candidate))
        if last_held[number] > self._store.now():
            raise NodeNumbersExhausted("all 1024 node numbers are leased")
        return number
