"""Makes the grants of jobs: the worker opens credentials, and hands on what a job names."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import structlog
from msgspec import Struct, structs

from noetl_chassis.clock import Clock
from noetl_chassis.seals.payload_seal import narrow_payload_keys
from noetl_contracts.errors import NoetlError
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.spark.grants import job_grant, payload_scope, store_policy
from noetl_worker.spark.grants.job_grant import GrantRenewal, JobGrant, StoreKeys
from noetl_worker.spark.grants.payload_scope import StoreLogin
from noetl_worker.spark.grants.renewal_place import RenewalPlace, open_renewal_place
from noetl_worker.spark.grants.store_policy import PrefixAccess
from noetl_worker.spark.grants.temporary_keys import (
    KeysUnavailable,
    NoTemporaryKeys,
    TemporaryKeys,
    request_keys,
)

SETTING = "NOETL_WORKER_SPARK_KEYS"
LIFETIME_S = 3600
# Keys of a store that gives none are asked for again after so long.
_NONE_S = 600.0
_REMEMBERED_MAX = 256
_RETRY_S = 30.0
_NARROWED = ("s3", "minio", "aws")
_FIELDS = ("endpoint", "region", "access_key", "secret_key", "session_token", "account", "key")

Mode = Literal["auto", "scoped"]
AskForKeys = Callable[..., TemporaryKeys]

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
        self._ask_for_keys = ask_for_keys
        self._keys: dict[tuple[str, str], TemporaryKeys] = {}
        # Stores that give no keys, by who asked, and until when they are not asked again.
        self._none: dict[str, tuple[float, str]] = {}

    @asynccontextmanager
    async def hold_grant(
        self, needs: Sequence[GrantNeed], site: UnitScope
    ) -> AsyncIterator[JobGrant]:
        """Hold what the executors of one job may open; raises `ToolFailure`."""
        grant = await self._make_grant(needs, site)
        if not grant.ends_at:
            yield grant
            return
        options = self._options
        place = open_renewal_place(
            options.store, site, folder=options.folder, is_near=options.is_near
        )
        if place is None:
            yield grant
            return
        renewal = GrantRenewal(place=place.address, key=os.urandom(job_grant.KEY_BYTES))
        grant = structs.replace(grant, renewal=renewal)
        renewing = asyncio.ensure_future(self._renew_grant(grant, place, needs, site))
        try:
            yield grant
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})
            await asyncio.to_thread(place.remove_data)

    async def _make_grant(self, needs: Sequence[GrantNeed], site: UnitScope) -> JobGrant:
        ends: list[float] = []
        accesses_by_name: dict[str, list[PrefixAccess]] = {}
        for need in needs:
            accesses = accesses_by_name.setdefault(need.credential, [])
            if need.access is not None:
                accesses.append(need.access)
        accounts = {
            name: await self._open_account(name, accesses, site, ends)
            for name, accesses in accesses_by_name.items()
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
            self._accept_own_keys(place, f"a store of type {credential.kind} gives none")
            return account
        keys = await self._find_keys(account, store_policy.build_policy(accesses), place)
        if keys is None:
            return account
        ends.append(keys.ends_at)
        return {
            **account,
            "access_key": keys.access_key,
            "secret_key": keys.secret_key,
            "session_token": keys.session_token,
        }

    async def _open_store(self, site: UnitScope, ends: list[float]) -> StoreKeys:
        """Return what opens the payloads of one organization, and no credential of it."""
        login = self._options.store
        seal_key, seal_file = narrow_payload_keys(login.seal_key, file=login.seal_file, owner=site)
        store = StoreKeys(
            access_key=login.access_key,
            secret_key=login.secret_key,
            seal_key=seal_key,
            seal_file=seal_file,
        )
        if login.is_local:
            return store
        place = "the payload store"
        if not login.is_s3 or not login.access_key:
            self._accept_own_keys(place, "it is opened by an identity of the machine, or is no S3")
            return store
        policy = store_policy.build_policy(payload_scope.list_accesses(login, site))
        keys = await self._find_keys(login.build_account(), policy, place)
        if keys is None:
            return store
        ends.append(keys.ends_at)
        return structs.replace(
            store,
            access_key=keys.access_key,
            secret_key=keys.secret_key,
            session_token=keys.session_token,
        )

    async def _find_keys(
        self, account: Mapping[str, Any], policy: str, place: str
    ) -> TemporaryKeys | None:
        """Return keys that a policy narrows, None where own ones are accepted."""
        now, lifetime_s = self._clock.now().timestamp(), self._options.lifetime_s
        who = f"{account.get('endpoint')} {account.get('access_key')}"
        remembered_keys = self._keys.get((who, policy))
        if remembered_keys is not None and remembered_keys.ends_at - now > lifetime_s * 0.75:
            return remembered_keys
        asked_again_at, reason = self._none.get(who, (0.0, ""))
        if now < asked_again_at:
            self._accept_own_keys(place, reason)
            return None
        try:
            keys = await asyncio.to_thread(
                self._ask_for_keys, account, policy, lifetime_s=lifetime_s
            )
        except NoTemporaryKeys as problem:
            _remember(self._none, who, (now + _NONE_S, str(problem)))
            self._accept_own_keys(place, str(problem))
            return None
        except KeysUnavailable as problem:
            text = f"{place}: {problem}"
            raise ToolFailure(build_error("storage_access", text, source="spark")) from problem
        _remember(self._keys, (who, policy), keys)
        return keys

    def _accept_own_keys(self, place: str, reason: str) -> None:
        """Let executors have the keys themselves; raises `ToolFailure` where none may be."""
        if self._options.mode == "auto":
            log.info("executors get keys that are not scoped", place=place, reason=reason)
            return
        text = (
            f"{place} has no temporary keys for executors ({reason}), and {SETTING}=scoped lets "
            f"them have no others: use a store that gives them, or set {SETTING}=auto"
        )
        raise ToolFailure(build_error("config", text, source="spark"))

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


def _remember(remembered: dict[Any, Any], key: Any, value: Any) -> None:
    if len(remembered) >= _REMEMBERED_MAX:
        remembered.clear()
    remembered[key] = value
