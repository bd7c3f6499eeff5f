"""Turns and destroys the keys of tenants, where payloads are sealed with such keys."""

from datetime import datetime, timedelta

from msgspec import Struct

from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.ports.errors import StorageMisconfigured
from noetl_storage.ports.payload_ports import Owner

# An older key stays so long after its successor was made: an upload may have begun with it.
OLDER_KEYS_STAY = timedelta(hours=24)


class KeyTurn(Struct, frozen=True, kw_only=True):
    """What became of an owner's payloads: sealed anew, kept as they were, and keys destroyed.

    Older keys that still have to stay are destroyed by a turn after `older_until`.
    """

    owner: Owner
    sealed: int
    unchanged: int
    destroyed: list[str]
    older_until: datetime | None = None


class Erasure(Struct, frozen=True, kw_only=True):
    """Which keys of an owner were destroyed, and how many objects nobody can open any more."""

    owner: Owner
    key_ids: list[str]
    objects: int
    erased_at: datetime


async def turn_owner_key(payloads: PayloadStore, owner: Owner, *, now: datetime) -> KeyTurn:
    """Seal everything of an owner with the newest key; raises what the store and keys raise.

    A tenant's key is made anew, unless an earlier one still waits for its end.
    """
    keys = payloads.find_tenant_keys()
    if keys is None:
        sealed, unchanged = await payloads.reseal_owner(owner)
        return KeyTurn(owner=owner, sealed=sealed, unchanged=unchanged, destroyed=[])
    key_ids = await payloads.run_blocking(keys.list_key_ids, owner)
    if len(key_ids) <= 1:
        newest = await payloads.run_blocking(keys.make_key, owner)
        key_ids = [*key_ids, newest]
    sealed, unchanged = await payloads.reseal_owner(owner)
    *older, newest = key_ids
    made_at = await payloads.run_blocking(keys.find_made_at, owner, newest)
    until = (made_at or now) + OLDER_KEYS_STAY
    is_over = bool(older) and now >= until
    if is_over:
        await payloads.run_blocking(keys.destroy_keys, owner, older)
    return KeyTurn(
        owner=owner,
        sealed=sealed,
        unchanged=unchanged,
        destroyed=older if is_over else [],
        older_until=until if older and not is_over else None,
    )


async def erase_owner(payloads: PayloadStore, owner: Owner, *, now: datetime) -> Erasure:
    """Destroy the keys of an owner, after all that it has was sealed with them.

    Raises `StorageMisconfigured` where payloads are not sealed with keys of tenants.
    """
    keys = payloads.find_tenant_keys()
    if keys is None:
        raise StorageMisconfigured(
            "payloads are not sealed with keys of tenants, which alone can be destroyed: write "
            "tenant+ before the key, as PAYLOAD_SEAL_KEY=tenant+k1:<base64>, in every service"
        )
    sealed, unchanged = await payloads.reseal_owner(owner)
    key_ids = await payloads.run_blocking(keys.list_key_ids, owner)
    await payloads.run_blocking(keys.destroy_keys, owner, key_ids)
    return Erasure(owner=owner, key_ids=key_ids, objects=sealed + unchanged, erased_at=now)
