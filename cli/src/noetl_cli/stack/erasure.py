"""The erasure of a tenant's payloads, with a certificate in its history of administration."""

from datetime import datetime

from msgspec import Struct, structs

from noetl_chassis.clock import SystemClock
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.stack import administered_work
from noetl_contracts import codec
from noetl_storage.payloads import key_turns
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.postgres.database import Database
from noetl_storage.postgres.ledger.payload_references import PostgresPayloadReferences


class Certificate(Struct, frozen=True, kw_only=True):
    """What was erased, by whom and when; the record of administration has the same text.

    `has_histories` says that the ledger still held events then: their small values are not erased.
    """

    tenant_id: str
    organization_id: str
    erased_at: datetime
    erased_by: str
    key_ids: list[str]
    objects: int
    has_histories: bool
    record_version: int = 0
    record_checksum: str = ""


async def erase_tenant(
    database: Database, payloads: PayloadStore, *, owner: Owner, keeps_histories: bool
) -> Certificate:
    """Destroy an owner's keys and record it; raises `CliError` while its histories stay."""
    has_histories = await PostgresPayloadReferences(database).has_events(owner)
    if has_histories and not keeps_histories:
        raise CliError(
            f"The ledger still holds histories of {owner.tenant_id}/{owner.organization_id}, with "
            "inputs and results that are small.",
            way_out="Let them leave first (noetl retention set --action drop), or say "
            "--keep-histories.",
            exit_code=ExitCode.USAGE,
        )
    now, user = SystemClock().now(), administered_work.get_login_name()
    erasure = await key_turns.erase_owner(payloads, owner, now=now)
    certificate = Certificate(
        tenant_id=owner.tenant_id,
        organization_id=owner.organization_id,
        erased_at=erasure.erased_at,
        erased_by=user,
        key_ids=erasure.key_ids,
        objects=erasure.objects,
        has_histories=has_histories,
    )
    record = await administered_work.append_own_record(
        database,
        administered_work.TENANT_ERASED,
        f"{owner.tenant_id}/{owner.organization_id}",
        owner=owner,
        details=codec.to_builtins(certificate),
        at=now,
    )
    return structs.replace(
        certificate, record_version=record.version, record_checksum=record.checksum
    )
