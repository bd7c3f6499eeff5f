"""Makes the grants of jobs: the worker opens credentials, and hands on what a job names."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import structlog
from msgspec import Struct, structs

from noetl_chassis.clock import Clock
from noetl_contracts.errors import NoetlError
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.spark.grants import job_grant, payload_scope, store_policy
from noetl_worker.spark.grants.job_grant import GrantRenewal, JobGrant, StoreKeys
from noetl_worker.spark.grants.key_finder import AskForKeys, KeyFinder
from noetl_worker.spark.grants.payload_scope import StoreLogin
from noetl_worker.spark.grants.renewal_place import RenewalPlace, open_renewal_place
from noetl_worker.spark.grants.store_policy import PrefixAccess
from noetl_worker.spark.grants.temporary_keys import request_keys

LIFETIME_S = 3600
_RETRY_S = 30.0
_NARROWED = ("s3", "minio", "aws")
_FIELDS = ("endpoint", "region", "access_key", "secret_key", "session_token", "account", "key")

Mode = Literal["auto", "scoped"]

log = structlog.get_logger(__name__)


class GrantNeed(Struct, frozen=True, kw_only=True):
    """A credential that a job names, and the folder that it opens; None for a database."""

    credential: str
    access: PrefixAccess | None = None


class GrantOptions(Struct, frozen=True, kw_only=True):
    """How grants are made; `folder` is where executors of this machine find renewed ones."""

    store: StoreLogin
    folder: Path
    is_near: bool
    mode: Mode = "auto"
    lifetime_s: int = LIFETIME_S


class GrantMaker:
    """Makes grants, and renews those of jobs that last."""

    def __init__(
        self,
        *,
        vault: CredentialVault,
        options: GrantOptions,
        clock: Clock,
        ask_for_keys: AskForKeys = request_keys,
    ) -> None:
        self._vault = vault
        self._options = options
        self._clock = clock
        self._finder = KeyFinder(
            ask_for_keys,
            clock=clock,
            lifetime_s=options.lifetime_s,
            is_scoped=options.mode == "scoped",
        )

    @asynccontextmanager
    async def hold_grant(
        self, needs: Sequence[GrantNeed], site: UnitScope
    ) -> AsyncIterator[JobGrant]:
        """Hold what the executors of one job may open; raises `ToolFailure`."""
        grant = await self._make_grant(needs, site)
        if not grant.ends_at:
            yield grant
            return
        place = self._open_place(site)
        if place is None:
            yield grant
            return
        renewal = GrantRenewal(place=place.address, key=os.urandom(job_grant.KEY_BYTES))
        grant = structs.replace(grant, renewal=renewal)
        async with self._hold_renewal(grant, place, needs, site):
            yield grant

    def _open_place(self, site: UnitScope) -> RenewalPlace | None:
        options = self._options
        return open_renewal_place(
            options.store, site, folder=options.folder, is_near=options.is_near
        )

    @asynccontextmanager
    async def _hold_renewal(
        self,
        grant: JobGrant,
        place: RenewalPlace,
        needs: Sequence[GrantNeed],
        site: UnitScope,
    ) -> AsyncIterator[None]:
        """Renew a grant for as long as the block runs."""
        renewing = asyncio.ensure_future(self._renew_grant(grant, place, needs, site))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})
            await asyncio.to_thread(place.remove_data)

    async def _make_grant(self, needs: Sequence[GrantNeed], site: UnitScope) -> JobGrant:
        ends: list[float] = []
        accounts = {
            name: await self._open_account(name, accesses, site, ends)
            for name, accesses in _group_by_credential(needs).items()
        }
        store = await self._open_store(site, ends)
        if not ends:
            return JobGrant(store=store, accounts=accounts)
        ends_at = min(ends)
        renew_at = ends_at - self._options.lifetime_s / 3
        return JobGrant(store=store, accounts=accounts, ends_at=ends_at, renew_at=renew_at)

    async def _open_account(
        self, name: str, accesses: list[PrefixAccess], site: UnitScope, ends: list[float]
    ) -> dict[str, Any]:
        credential = await self._vault.resolve_auth(name, site)
        if not accesses:
            return dict(credential.fields)
        account = {key: credential.fields[key] for key in _FIELDS if key in credential.fields}
        place = f"credential '{name}'"
        if credential.kind not in _NARROWED:
            self._finder.accept_own_keys(place, f"a store of type {credential.kind} gives none")
            return account
        policy = store_policy.build_policy(accesses)
        keys = await self._finder.find_keys(account, policy, place)
        if keys is None:
            return account
        ends.append(keys.ends_at)
        return {**account, **keys.as_fields()}

    async def _open_store(self, site: UnitScope, ends: list[float]) -> StoreKeys:
        """Return what opens the payloads of one organization, and no credential of it."""
        login = self._options.store
        store = login.build_own_keys(site)
        if login.is_local:
            return store
        place = "the payload store"
        if not login.is_s3 or not login.access_key:
            reason = "it is opened by an identity of the machine, or is no S3"
            self._finder.accept_own_keys(place, reason)
            return store
        policy = store_policy.build_policy(payload_scope.list_accesses(login, site))
        keys = await self._finder.find_keys(login.build_account(), policy, place)
        if keys is None:
            return store
        ends.append(keys.ends_at)
        return structs.replace(store, **keys.as_fields())

    async def _renew_grant(
        self,
        grant: JobGrant,
        place: RenewalPlace,
        needs: Sequence[GrantNeed],
        site: UnitScope,
    ) -> None:
        """Leave a new grant each time before the last one is to be renewed."""
        renewal = grant.renewal
        assert renewal is not None, "it was opened with the job"
        while True:
            # Executors look at `renew_at`: the next grant lies there by then.
            now = self._clock.now().timestamp()
            await asyncio.sleep(max(grant.renew_at - now - self._options.lifetime_s / 6, 0.0))
            try:
                grant = structs.replace(await self._make_grant(needs, site), renewal=renewal)
                data = job_grant.seal_grant(grant, renewal.key)
                await asyncio.to_thread(place.write_data, data)
            except (ToolFailure, NoetlError, OSError) as problem:
                log.warning("keys of executors are not renewed", error=str(problem))
                await asyncio.sleep(_RETRY_S)


def _group_by_credential(needs: Sequence[GrantNeed]) -> dict[str, list[PrefixAccess]]:
    """Return the folders that each credential is to open; a database has none."""
    accesses_by_name: dict[str, list[PrefixAccess]] = {}
    for need in needs:
        accesses = accesses_by_name.setdefault(need.credential, [])
        if need.access is not None:
            accesses.append(need.access)
    return accesses_by_name
