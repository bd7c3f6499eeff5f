"""Opens the payload store and credentials inside Spark executors.

Executors are processes of their own, perhaps on other machines. They are told where the store is;
the keys to it are in their environment, and never in a plan.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec import Struct

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


class StoreAddress(Struct, frozen=True, kw_only=True):
    """The payload store of one organization, as an executor finds it."""

    url: str
    tenant_id: TenantId
    organization_id: OrganizationId

    @property
    def is_in_process(self) -> bool:
        """Tell whether the store is in the worker's own memory, where executors cannot reach it."""
        return self.url.startswith("memory:")


def run_with_store(home: StoreAddress, work: Callable[[Payloads], Awaitable[T]]) -> T:
    """Do some work with the store open; raises `SparkRefusal`."""

    async def open_and_run() -> T:
        keys = settings.read_executor_keys()
        opening = open_payloads(
            home.url,
            access_key=keys.payload_access_key or None,
            secret_key=keys.payload_secret_key or None,
            threads_max=_THREADS_MAX,
            seals=read_payload_keys(
                keys.payload_seal_key,
                file=keys.payload_seal_file,
                managed=master_keys.open_managed_keys,
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


def read_payload(home: StoreAddress, ref: PayloadRef) -> bytes:
    """Return stored bytes whose digest was checked; raises `SparkRefusal`."""
    return run_with_store(home, lambda payloads: payloads.read_payload(ref))


def open_credential_fields(home: StoreAddress, name: str) -> dict[str, Any]:
    """Open the latest version of a stored credential; raises `SparkRefusal`."""
    secret_key = settings.read_executor_keys().secret_key
    if not secret_key:
        text = (
            "this executor cannot open credentials: set NOETL_WORKER_SECRET_KEY in the "
            "environment of the cluster's workers"
        )
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
