"""Records of administration of what the command line does in the stores itself, without an API."""

import getpass
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from msgspec import Struct

from noetl_chassis.clock import SystemClock
from noetl_contracts.identity.actors import Actor, ActorKind, Via
from noetl_contracts.identity.administration import (
    TARGET_CHARACTERS_MAX,
    AdministrationRecord,
    NewRecord,
)
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.postgres.database import Database
from noetl_storage.postgres.registry.administration import PostgresAdministrationLog


class Work(Struct, frozen=True, kw_only=True):
    """Work that no transaction holds together: the actions that record its begin and its end."""

    begun: str
    ended: str


# The database lets the projector and the archivist record theirs: see `append_administration`.
REBUILD = Work(begun="projection.rebuild_begun", ended="projection.rebuilt")
RETENTION = Work(begun="retention.run_begun", ended="retention.run_ended")
ROTATION = Work(begun="payloads.rotation_begun", ended="payloads.rotated")
COLLECTION = Work(begun="payloads.collection_begun", ended="payloads.collected")
READER_CREATED, READER_DROPPED = "reader.created", "reader.dropped"
DATABASE_CREATED = "database.created"
TENANT_ERASED = "tenant.erased"


def get_login_name() -> str:
    """Return who runs the command, as the operating system names them."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


async def append_own_record(
    database: Database,
    action: str,
    target: str,
    *,
    owner: Owner,
    details: dict[str, Any],
    at: datetime | None = None,
) -> AdministrationRecord:
    """Record in an organization's stream what who runs this command has done."""
    user = get_login_name()
    return await PostgresAdministrationLog(database).append_record(
        NewRecord(
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            event_time=at or SystemClock().now(),
            action=action,
            target=target[:TARGET_CHARACTERS_MAX],
            actor=Actor(kind=ActorKind.OWNER, id=user, name=user, via=Via.CLI),
            details=details,
        )
    )


@asynccontextmanager
async def record_work(
    database: Database, work: Work, target: str, *, owner: Owner, **details: Any
) -> AsyncIterator[dict[str, Any]]:
    """Record that work begins, and what became of it where it comes to its end.

    Nothing is changed before the first record is stored. The block adds to the details that it is
    given; a begin without an end is work that failed or was killed.
    """
    await append_own_record(database, work.begun, target, owner=owner, details=details)
    outcome = dict(details)
    yield outcome
    await append_own_record(database, work.ended, target, owner=owner, details=outcome)
