"""The log of who requeued or dropped which dead letters, on PostgreSQL."""

import asyncpg

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.requests.dead_letters import DeadLetterAct, DeadLetterAction
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("dead_letter_log")


class PostgresDeadLetterLog:
    """Keeps who sent dead letters again, and who dropped them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record_act(self, act: DeadLetterAct) -> DeadLetterAct:
        """Keep an act; return it with its number and time."""
        record = await self._database.get_row(
            _QUERIES["record"],
            act.action,
            act.sequence,
            act.tenant_id,
            act.organization_id,
            act.stream,
            act.consumer,
            act.subject,
            act.reason,
            act.delivered,
            act.requeued,
            act.sha256,
            act.who,
            act.why,
        )
        return _build_act(record)

    async def find_last_act(
        self, sequence: int, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> DeadLetterAct | None:
        """Return the latest act on a letter, or None."""
        record = await self._database.find_row(
            _QUERIES["find_last"], sequence, tenant_id, organization_id
        )
        return None if record is None else _build_act(record)

    async def list_acts(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        before: int | None = None,
        acts_max: int,
    ) -> list[DeadLetterAct]:
        """Return acts, the latest first, perhaps those before a number."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_acts"], tenant_id, organization_id, before, acts_max
        )
        return [_build_act(record) for record in rows]


def _build_act(record: asyncpg.Record) -> DeadLetterAct:
    return DeadLetterAct(
        act_id=record["act_id"],
        acted_at=record["acted_at"],
        action=DeadLetterAction(record["action"]),
        sequence=record["sequence"],
        tenant_id=TenantId(record["tenant_id"]),
        organization_id=OrganizationId(record["organization_id"]),
        stream=record["stream"],
        consumer=record["consumer"],
        subject=record["subject"],
        reason=record["reason"],
        delivered=record["delivered"],
        requeued=record["requeued"],
        sha256=record["sha256"],
        who=record["who"],
        why=record["why"],
    )
