"""The subject grammar: one build and one parse per subject."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from noetl_contracts import codec
from noetl_contracts.errors import Permanent, SubjectError
from noetl_contracts.ids import OrganizationId, TenantId

INGEST = "noetl.ingest"
EVENTS = "noetl.events"
COMMANDS = "noetl.commands"
DEAD_LETTERS = "noetl.dlq"
LIMITS = "noetl.limits"
TRIGGERS = "noetl.triggers"
POKES = "noetl.poke"
HALTED = f"{POKES}.halted"
TAKEN = f"{POKES}.taken"
STOPS = f"{POKES}.stop"
PAUSES = f"{POKES}.pause"
PROGRESS = f"{POKES}.progress"
# What planners alone say, and workers alone hear: it may be lost like a poke.
OFFERS = "noetl.offers"
# Below it each worker says how it is, under the names of its pool and identity.
WORKERS = f"{POKES}.workers"
# Below a shard and an owner: the reports of workers, under the names of their pool and identity.
REPORTS = "worker"
# Asks every worker which commands it holds; they answer below `HELD`, as below `WORKERS`.
ROLL_CALL = f"{POKES}.roll-call"
HELD = f"{POKES}.held"
# Where planners say which executions wait for the payload store.
STORE_WAITS = f"{POKES}.store-waits"

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Behind a lane's name or a shard in the subjects of those who have a share of their own.
OWN = "-own"
WEIGHT_MAX = 1000
_SHARE = re.compile(r"([A-Za-z0-9_-]{1,64})(?:=([1-9][0-9]{0,3}))?")
_MARK = re.compile(r"-t[0-9a-f]{8}$")


class Reporter(NamedTuple):
    """The worker that a subject names, and its pool: the broker admits nobody else to it."""

    pool: str
    identity: str


_SHARD_FORM = re.compile(
    rf"(?:{re.escape(EVENTS)}|({re.escape(INGEST)}))\.([0-9]+)({OWN})?\.([^.]+)\.([^.]+)"
    rf"(?:\.{REPORTS}\.([^.]+)\.([^.]+))?"
)


class ShardSubject(NamedTuple):
    """What an ingest or events subject says; `reporter` is None where a service publishes."""

    shard: int
    tenant_id: TenantId
    organization_id: OrganizationId
    reporter: Reporter | None = None
    is_own: bool = False


class CommandSubject(NamedTuple):
    """What a command subject says."""

    pool: str
    lane: str
    tenant_id: TenantId
    organization_id: OrganizationId
    is_own: bool = False


def build_ingest_subject(
    shard: int, tenant_id: TenantId, organization_id: OrganizationId, *, is_own: bool = False
) -> str:
    """Address facts to the owner of a shard: `noetl.ingest.<shard>.<tenant>.<org>`.

    Facts of a tenant with a share of its own have `-own` behind the shard, as commands have.
    """
    return f"{INGEST}.{shard}{OWN if is_own else ''}.{_join_owner(tenant_id, organization_id)}"


# A worker reports for few tenants, and a planner hears few workers: each is written out once.
@lru_cache(maxsize=4096)
def build_report_subject(
    shard: int,
    tenant_id: TenantId,
    organization_id: OrganizationId,
    reporter: Reporter,
    *,
    is_own: bool = False,
) -> str:
    """Address a worker's facts: `noetl.ingest.<shard>.<tenant>.<org>.worker.<pool>.<identity>`."""
    reporter_tokens = ".".join(_check_subject_token(token) for token in reporter)
    subject = build_ingest_subject(shard, tenant_id, organization_id, is_own=is_own)
    return f"{subject}.{REPORTS}.{reporter_tokens}"


def build_events_subject(shard: int, tenant_id: TenantId, organization_id: OrganizationId) -> str:
    """Address committed events: `noetl.events.<shard>.<tenant>.<org>`."""
    return f"{EVENTS}.{shard}.{_join_owner(tenant_id, organization_id)}"


def build_command_subject(
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
    parts = (
        _check_subject_token(pool),
        _check_subject_token(lane_token),
        _check_subject_token(tenant_id),
        _check_subject_token(organization_id),
    )
    return ".".join((COMMANDS, *parts))


def build_ingest_filter(shard: int, tenant_id: str | None = None) -> str:
    """Match every fact of a shard, of a tenant with its own share or of all others."""
    if tenant_id is None:
        return f"{INGEST}.{shard}.>"
    return f"{INGEST}.{shard}{OWN}.{_check_subject_token(tenant_id)}.>"


def build_events_filter(shard: int) -> str:
    """Match every event of a shard."""
    return f"{EVENTS}.{shard}.>"


def build_command_filter(pool: str, lane: str) -> str:
    """Match every command of a pool's lane."""
    return f"{COMMANDS}.{_check_subject_token(pool)}.{_check_subject_token(lane)}.>"


def build_own_share_filter(pool: str, lane: str, tenant_id: str) -> str:
    """Match every command of a tenant that has its own share of a pool's lane."""
    tokens = [_check_subject_token(token) for token in (pool, lane + OWN, tenant_id)]
    return ".".join([COMMANDS, *tokens, ">"])


def build_lane_filter(lane: str) -> str:
    """Build the filter for every command of a lane, in all pools."""
    return f"{COMMANDS}.*.{_check_subject_token(lane)}.>"


def build_dead_letter_subject(stream: str, consumer: str) -> str:
    """Address a message that its consumer gave up: `noetl.dlq.<stream>.<consumer>`."""
    return f"{DEAD_LETTERS}.{_check_subject_token(stream)}.{_check_subject_token(consumer)}"


def build_limit_subject(tenant_id: TenantId, organization_id: OrganizationId, name: str) -> str:
    """Address what the calls of a rate limit share: `noetl.limits.<tenant>.<org>.<name>`."""
    return f"{LIMITS}.{_join_owner(tenant_id, organization_id)}.{_check_subject_token(name)}"


@lru_cache(maxsize=4096)
def find_identity(worker_id: str) -> str:
    """Return the identity that a worker's id begins with: `<identity>` or `<identity>.<process>`.

    An id that begins with no subject token has a digest in its place.
    """
    identity = worker_id.partition(".")[0]
    return identity if is_subject_token(identity) else codec.digest_hex(worker_id.encode())[:32]


def build_worker_id(identity: str, process: str) -> str:
    """Name a process of an identity; `process` may be a name of the identity already."""
    is_named = process.partition(".")[0] == identity
    return process if is_named else f"{identity}.{process}"


def build_presence_subject(pool: str, worker_id: str) -> str:
    """Address what a worker says of itself: `noetl.poke.workers.<pool>.<identity>`."""
    return f"{WORKERS}.{_check_subject_token(pool)}.{find_identity(worker_id)}"


def build_held_subject(pool: str, worker_id: str) -> str:
    """Address what a worker says that it holds: `noetl.poke.held.<pool>.<identity>`."""
    return f"{HELD}.{_check_subject_token(pool)}.{find_identity(worker_id)}"


def list_process_names(worker_id: str) -> tuple[str, ...]:
    """List the names that the process behind a worker's id may have (`build_worker_id`)."""
    process = worker_id.partition(".")[2]
    return (worker_id, process) if process else (worker_id,)


def build_hint_subject(hint: str) -> str:
    """Address a plain wake-up hint: `noetl.poke.<what>`; losing it costs only time."""
    return f"{POKES}.{_check_subject_token(hint)}"


def build_stop_hint(command_id: str) -> str:
    """Address the hint that a command's work is to end now: `noetl.poke.stop.<command>`."""
    return f"{STOPS}.{_check_subject_token(command_id)}"


def build_pause_hint(command_id: str) -> str:
    """Address the hint that a slot is to end after its frame: `noetl.poke.pause.<command>`."""
    return f"{PAUSES}.{_check_subject_token(command_id)}"


def build_chunk_progress_prefix(command_id: str) -> str:
    """Return what the hints begin with that tell a stream's worker how far the planner is."""
    return f"{TAKEN}.{_check_subject_token(command_id)}"


def build_chunk_progress_hint(command_id: str, how_far: str) -> str:
    """Address such a hint: `noetl.poke.taken.<command>.<how far>`."""
    return f"{build_chunk_progress_prefix(command_id)}.{_check_subject_token(how_far)}"


def build_halted_hint(execution_id: str) -> str:
    """Address the hint that an execution is over, or being cancelled: `noetl.poke.halted.<id>`."""
    return f"{HALTED}.{_check_subject_token(execution_id)}"


def build_offer_subject(worker_id: str) -> str:
    """Address commands that one worker may ask for first: `noetl.offers.to.<identity>.<digest>`."""
    digest = codec.digest_hex(worker_id.encode())[:32]
    return f"{OFFERS}.to.{find_identity(worker_id)}.{digest}"


def build_grant_subject(command_id: str, attempt: int) -> str:
    """Address the hint that an attempt is the worker's to whom it was offered."""
    return f"{OFFERS}.granted.{_check_subject_token(command_id)}.{attempt}"


def build_growth_hint(execution_id: str) -> str:
    """Address the hint that an execution's history has grown."""
    return build_hint_subject(f"grown-{execution_id}")


def build_progress_hint(execution_id: str) -> str:
    """Address the hints that tell how far an execution's tasks are: `noetl.poke.progress.<id>`."""
    return f"{PROGRESS}.{_check_subject_token(execution_id)}"


def parse_shard_subject(subject: str) -> ShardSubject:
    """Parse an ingest or events subject; raises `SubjectError`."""
    match = _SHARD_FORM.fullmatch(subject)
    if match is None or (match[1] is None and (match[3] or match[6])):
        raise SubjectError(
            f"{subject!r} is not <stream>.<shard>.<tenant>.<org>, "
            f"nor {INGEST}.<shard>.<tenant>.<org>.{REPORTS}.<pool>.<identity>"
        )
    _, shard, own_mark, tenant, organization, pool, identity = match.groups()
    return ShardSubject(
        int(shard),
        TenantId(tenant),
        OrganizationId(organization),
        None if pool is None else Reporter(pool, identity),
        is_own=own_mark is not None,
    )


def parse_command_subject(subject: str) -> CommandSubject:
    """Parse a command subject; raises `SubjectError`."""
    parts = subject.split(".")
    if len(parts) != 6 or ".".join(parts[:2]) != COMMANDS:  # noqa: PLR2004 - the grammar above has six tokens
        raise SubjectError(f"{subject!r} is not {COMMANDS}.<pool>.<lane>.<tenant>.<org>")
    lane = parts[3].removesuffix(OWN)
    is_own = lane != parts[3]
    return CommandSubject(
        parts[2], lane, TenantId(parts[4]), OrganizationId(parts[5]), is_own=is_own
    )


def _join_owner(tenant_id: str, organization_id: str) -> str:
    return f"{_check_subject_token(tenant_id)}.{_check_subject_token(organization_id)}"


def is_subject_token(value: str) -> bool:
    """Tell whether a text may stand between the dots of a subject."""
    return _TOKEN.fullmatch(value) is not None


def _check_subject_token(value: str) -> str:
    """Admit one subject token; wildcards, dots and spaces would change the address."""
    if not is_subject_token(value):
        raise SubjectError(
            f"{value!r} cannot stand in a subject: use 1 to 64 letters, digits, '_' or '-'"
        )
    return value


class SharesMalformed(Permanent):
    """A list of tenants does not say who has how much; the message says which entry."""


def parse_tenant_shares(entries: Iterable[str]) -> dict[str, int]:
    """Read `tenant` or `tenant=weight` each; raises `SharesMalformed`."""
    tenant_shares: dict[str, int] = {}
    for entry in entries:
        match = _SHARE.fullmatch(entry)
        weight = int(match[2] or 1) if match else 0
        if match is None or not 0 < weight <= WEIGHT_MAX or match[1] in tenant_shares:
            raise SharesMalformed(
                f"{entry[:80]!r} is no share: write tenant or tenant=weight, each tenant once, "
                f"weights from 1 to {WEIGHT_MAX}"
            )
        tenant_shares[match[1]] = weight
    marks = {build_tenant_mark(tenant) for tenant in tenant_shares}
    if len(marks) < len(tenant_shares):
        raise SharesMalformed("two of the tenants cannot be told apart: rename one of them")
    return tenant_shares


def build_tenant_mark(tenant_id: str) -> str:
    """Return what a tenant's own consumers have behind their names; names may be long."""
    return f"-t{codec.digest_hex(tenant_id.encode())[:8]}"


def strip_tenant_mark(consumer: str) -> str:
    """Return a consumer's name without the mark of its tenant."""
    return _MARK.sub("", consumer)
