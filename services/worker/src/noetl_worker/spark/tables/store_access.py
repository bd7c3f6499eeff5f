"""Opens the payload store and credentials inside Spark executors.

Executors are processes of their own, perhaps on other machines. They have the grant of their job,
which comes with the address of the store. The worker itself uses its own keys.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from msgspec import Struct, structs

from noetl_chassis.clock import SystemClock
from noetl_chassis.seals.credential_seal import CredentialSealer, KeyUnusable, SealBroken
from noetl_chassis.seals.payload_seal import read_payload_keys
from noetl_contracts import codec
from noetl_contracts.credentials import SealedCredential, build_object_prefix
from noetl_contracts.errors import NoetlError, Permanent, Retryable
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef
from noetl_storage.payloads import master_keys
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.ports.errors import PayloadMissing
from noetl_storage.ports.ledger_ports import Payloads
from noetl_worker import settings
from noetl_worker.payloads.payload_retry import retry_store_call
from noetl_worker.spark.grants import job_grant
from noetl_worker.spark.grants.job_grant import GrantUnusable, JobGrant, StoreKeys

T = TypeVar("T")

_THREADS_MAX = 2
# How a failure looks inside the text of Spark's own error, which is all that comes back.
_CODED = re.compile(r"NOETL-REFUSED (\{.*\})")


class SparkRefusal(Exception):  # noqa: N818 - it carries an outcome through Spark, as text
    """Ends a task of an executor with an error that the driver finds in Spark's message."""

    def __init__(self, kind: str, message: str, **fields: Any) -> None:
        about = {"kind": kind, "message": message[:2_000], **fields}
        super().__init__("NOETL-REFUSED " + codec.encode_text(about))


def find_refusal(message: str) -> dict[str, Any] | None:
    """Find what `SparkRefusal` said in an error message of Spark, or None."""
    match = _CODED.search(message)
    try:
        about = codec.decode_json(match[1].encode()) if match else None
    except ValueError:
        return None
    return about if isinstance(about, dict) and "kind" in about and "message" in about else None


class StoreAddress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload store of one organization, as an executor finds it; the grant opens it."""

    url: str
    tenant_id: TenantId
    organization_id: OrganizationId
    grant: JobGrant | None = None

    @property
    def is_in_process(self) -> bool:
        """Tell whether the store is in the worker's own memory, where executors cannot reach it."""
        return self.url.startswith("memory:")

    @property
    def place(self) -> "StoreAddress":
        """Return the address alone, as others may see it."""
        return structs.replace(self, grant=None)

    def with_grant(self, grant: JobGrant | None) -> "StoreAddress":
        """Return the address for who was given the grant of a job."""
        return structs.replace(self, grant=grant)


class _WorkerKeys:
    """Tells the worker's process from those of executors."""

    is_here = False


def use_worker_keys() -> None:
    """Let this process open stores and credentials with the keys of its environment."""
    _WorkerKeys.is_here = True


def run_with_store(home: StoreAddress, work: Callable[[Payloads], Awaitable[T]]) -> T:
    """Do some work with the store open; raises `SparkRefusal`."""

    async def open_and_run() -> T:
        keys = _find_store_keys(home)
        opening = open_payloads(
            home.url,
            access_key=keys.access_key or None,
            secret_key=keys.secret_key or None,
            session_token=keys.session_token or None,
            threads_max=_THREADS_MAX,
            seals=read_payload_keys(
                keys.seal_key, file=keys.seal_file, managed=master_keys.open_managed_keys
            ),
        )
        async with opening as payloads:
            # A store that is away costs the job time; cancelled, it takes this process along.
            return await retry_store_call(lambda: work(payloads))

    try:
        return asyncio.run(open_and_run())
    except PayloadMissing as problem:
        raise SparkRefusal("reference_not_available", str(problem)) from problem
    except Retryable as problem:
        raise SparkRefusal("storage_access", str(problem)) from problem
    except (Permanent, KeyUnusable) as problem:
        raise SparkRefusal("config", str(problem)) from problem


def _find_store_keys(home: StoreAddress) -> StoreKeys:
    grant = _find_grant(home)
    if grant is not None:
        return grant.store
    keys = settings.read_executor_keys()
    return StoreKeys(
        access_key=keys.payload_access_key,
        secret_key=keys.payload_secret_key,
        seal_key=keys.payload_seal_key,
        seal_file=keys.payload_seal_file,
    )


def _find_grant(home: StoreAddress) -> JobGrant | None:
    """Return the grant that holds now, None in the worker; raises `SparkRefusal`."""
    if home.grant is None or _WorkerKeys.is_here:
        return None
    try:
        return job_grant.find_current_grant(home.grant, SystemClock().now().timestamp())
    except GrantUnusable as problem:
        raise SparkRefusal("storage_access", str(problem)) from problem


def find_end(home: StoreAddress) -> datetime | None:
    """Return when an executor's keys are to be renewed, None where they last."""
    grant = _find_grant(home)
    return datetime.fromtimestamp(grant.renew_at, UTC) if grant and grant.renew_at else None


def read_payload(home: StoreAddress, ref: PayloadRef) -> bytes:
    """Return stored bytes whose digest was checked; raises `SparkRefusal`."""
    return run_with_store(home, lambda payloads: payloads.read_payload(ref))


def open_credential_fields(home: StoreAddress, name: str) -> dict[str, Any]:
    """Return the fields of a credential: granted ones, in the worker those that are stored.

    Raises `SparkRefusal`.
    """
    grant = _find_grant(home)
    if grant is not None:
        if name not in grant.accounts:
            text = f"credential '{name}' is none that this task's inputs and output name"
            raise SparkRefusal("config", text)
        return grant.accounts[name]
    secret_key = settings.read_executor_keys().secret_key
    if not secret_key:
        text = f"credential '{name}' is opened by the worker alone, which gave no grant"
        raise SparkRefusal("config", text)

    tenant_id, organization_id = home.tenant_id, home.organization_id

    async def read_sealed(payloads: Payloads) -> bytes | None:
        names = await payloads.list_names(
            build_object_prefix(name), tenant_id=tenant_id, organization_id=organization_id
        )
        if not names:
            return None
        return await payloads.find_named(
            max(names), tenant_id=tenant_id, organization_id=organization_id
        )

    data = run_with_store(home, read_sealed)
    if data is None:
        raise SparkRefusal("config", f"credential '{name}' is not registered")
    try:
        return CredentialSealer(secret_key).open_credential(
            codec.decode_as(data, SealedCredential),
            tenant_id=home.tenant_id,
            organization_id=home.organization_id,
        )
    except (SealBroken, NoetlError) as problem:
        raise SparkRefusal(
            "config", f"credential '{name}' cannot be opened: {problem}"
        ) from problem
