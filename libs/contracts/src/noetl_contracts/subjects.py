"""The subject grammar: one build and one parse per subject."""

import re
from typing import NamedTuple

from noetl_contracts import codec
from noetl_contracts.errors import SubjectError
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.tenancy import OWN

INGEST = "noetl.ingest"
EVENTS = "noetl.events"
COMMANDS = "noetl.commands"
DEAD_LETTERS = "noetl.dlq"
LIMITS = "noetl.limits"
TRIGGERS = "noetl.triggers"
POKES = "noetl.poke"
HALTED = f"{POKES}.halted"
TAKEN = f"{POKES}.taken"
# What planners alone say, and workers alone hear: it may be lost like a poke.
OFFERS = "noetl.offers"
# Where workers say how they are.
WORKERS = f"{POKES}.workers"

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ShardSubject(NamedTuple):
    """What an ingest or events subject says."""

    shard: int
    tenant_id: TenantId
    organization_id: OrganizationId


class CommandSubject(NamedTuple):
    """What a command subject says."""

    pool: str
    lane: str
    tenant_id: TenantId
    organization_id: OrganizationId
    is_own: bool = False


def ingest(shard: int, tenant_id: TenantId, organization_id: OrganizationId) -> str:
    """Address facts to the owner of a shard: `noetl.ingest.<shard>.<tenant>.<org>`."""
    return f"{INGEST}.{shard}.{_token(tenant_id)}.{_token(organization_id)}"


def events(shard: int, tenant_id: TenantId, organization_id: OrganizationId) -> str:
    """Address committed events: `noetl.events.<shard>.<tenant>.<org>`."""
    return f"{EVENTS}.{shard}.{_token(tenant_id)}.{_token(organization_id)}"


def command(
    pool: str,
    lane: str,
    tenant_id: TenantId,
    organization_id: OrganizationId,
    *,
    is_own: bool = False,
) -> str:
    """Address a command to a pool: `noetl.commands.<pool>.<lane>.<tenant>.<org>`.

    Commands of a tenant with a share of its own have `-own` behind the lane: no queue of the
    others then holds them.
    """
    lane_token = lane + OWN if is_own else lane
    parts = (_token(pool), _token(lane_token), _token(tenant_id), _token(organization_id))
    return ".".join((COMMANDS, *parts))


def ingest_filter(shard: int) -> str:
    """Match every fact of a shard."""
    return f"{INGEST}.{shard}.>"


def events_filter(shard: int) -> str:
    """Match every event of a shard."""
    return f"{EVENTS}.{shard}.>"


def command_filter(pool: str, lane: str) -> str:
    """Match every command of a pool's lane."""
    return f"{COMMANDS}.{_token(pool)}.{_token(lane)}.>"


def command_filter_of_own(pool: str, lane: str, tenant_id: str) -> str:
    """Match every command of a tenant that has its own share of a pool's lane."""
    return f"{COMMANDS}.{_token(pool)}.{_token(lane + OWN)}.{_token(tenant_id)}.>"


def command_filter_of_all(lane: str) -> str:
    """Match every command of a lane, whatever the pool."""
    return f"{COMMANDS}.*.{_token(lane)}.>"


def dead_letter(stream: str, consumer: str) -> str:
    """Address a message that its consumer gave up: `noetl.dlq.<stream>.<consumer>`."""
    return f"{DEAD_LETTERS}.{_token(stream)}.{_token(consumer)}"


def limit(tenant_id: TenantId, organization_id: OrganizationId, name: str) -> str:
    """Address what the calls of a rate limit share: `noetl.limits.<tenant>.<org>.<name>`."""
    return f"{LIMITS}.{_token(tenant_id)}.{_token(organization_id)}.{_token(name)}"


def poke(what: str) -> str:
    """Address a plain wake-up hint: `noetl.poke.<what>`; losing it costs only time."""
    return f"{POKES}.{_token(what)}"


def stop(command_id: str) -> str:
    """Address the hint that a command's work is to end now."""
    return poke(f"stop-{command_id}")


def pause(command_id: str) -> str:
    """Address the hint that a slot is to end after the frame that it is at."""
    return poke(f"pause-{command_id}")


def taken(command_id: str) -> str:
    """Return what the hints begin with that tell a stream's worker how far the planner is."""
    return f"{TAKEN}.{_token(command_id)}"


def taken_so_far(command_id: str, how_far: str) -> str:
    """Address such a hint: `noetl.poke.taken.<command>.<how far>`."""
    return f"{taken(command_id)}.{_token(how_far)}"


def halted(execution_id: str) -> str:
    """Address the hint that an execution is over, or being cancelled: `noetl.poke.halted.<id>`."""
    return f"{HALTED}.{_token(execution_id)}"


def offer(worker_id: str) -> str:
    """Address commands that one worker may ask for before others: `noetl.offers.to.<digest>`."""
    return f"{OFFERS}.to.{codec.digest(worker_id.encode())[:32]}"


def granted(command_id: str, attempt: int) -> str:
    """Address the hint that an attempt is the worker's to whom it was offered."""
    return f"{OFFERS}.granted.{_token(command_id)}.{attempt}"


def followed(execution_id: str) -> str:
    """Address the hint that an execution's history has grown."""
    return poke(f"grown-{execution_id}")


def progress(execution_id: str) -> str:
    """Address the hints that tell how far an execution's tasks are."""
    return poke(f"progress-{execution_id}")


def parse_shard(subject: str) -> ShardSubject:
    """Parse an ingest or events subject; raises `SubjectError`."""
    parts = subject.split(".")
    if len(parts) != 5 or ".".join(parts[:2]) not in {INGEST, EVENTS} or not parts[2].isdigit():  # noqa: PLR2004 - the grammar above has five tokens
        raise SubjectError(f"{subject!r} is not <stream>.<shard>.<tenant>.<org>")
    return ShardSubject(int(parts[2]), TenantId(parts[3]), OrganizationId(parts[4]))


def parse_command(subject: str) -> CommandSubject:
    """Parse a command subject; raises `SubjectError`."""
    parts = subject.split(".")
    if len(parts) != 6 or ".".join(parts[:2]) != COMMANDS:  # noqa: PLR2004 - the grammar above has six tokens
        raise SubjectError(f"{subject!r} is not {COMMANDS}.<pool>.<lane>.<tenant>.<org>")
    lane = parts[3].removesuffix(OWN)
    is_own = lane != parts[3]
    return CommandSubject(
        parts[2], lane, TenantId(parts[4]), OrganizationId(parts[5]), is_own=is_own
    )


def _token(value: str) -> str:
    """Admit one subject token; wildcards, dots and spaces would change the address."""
    if not _TOKEN.fullmatch(value):
        raise SubjectError(
            f"{value!r} cannot stand in a subject: use 1 to 64 letters, digits, '_' or '-'"
        )
    return value
