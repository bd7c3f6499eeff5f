"""Administration records: what was done outside an execution, and what was refused.

Every organization has one stream of them. A record's checksum covers it and the checksum of the
record before it, as the checksums of events do.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.identity.actors import Actor
from noetl_contracts.ids import OrganizationId, TenantId

TARGET_CHARACTERS_MAX = 512


class Outcome(StrEnum):
    """Whether something was done, or refused for want of a permission."""

    DONE = "done"
    REFUSED = "refused"


class NewRecord(Struct, frozen=True, kw_only=True):
    """A record before it has its place: `action` such as `credential.written`, and its `target`.

    `details` hold no secret and no value of a credential.
    """

    tenant_id: TenantId
    organization_id: OrganizationId
    event_time: datetime
    action: str
    target: str
    actor: Actor
    outcome: Outcome = Outcome.DONE
    details: dict[str, Any] = msgspec.field(default_factory=dict)


class AdministrationRecord(NewRecord, frozen=True, kw_only=True):
    """A record in its stream, sealed."""

    version: int
    checksum: str


class RecordFilter(Struct, frozen=True, kw_only=True):
    """Which records are wanted: all where nothing is said.

    `who` is the id, the name or the key prefix of an actor, or of who caused it first; `what` is an
    action, or the beginning of one before a point, such as `credential`. Records of `since` are
    wanted, those of `until` are not.
    """

    who: str | None = None
    what: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    outcome: Outcome | None = None

    def accepts_record(self, record: AdministrationRecord) -> bool:
        """Tell whether a record is one of those."""
        return (
            (self.who is None or self.who in list_actor_names(record.actor))
            and (self.what is None or is_action_of(record.action, self.what))
            and (self.since is None or record.event_time >= self.since)
            and (self.until is None or record.event_time < self.until)
            and (self.outcome is None or record.outcome == self.outcome)
        )


def list_actor_names(actor: Actor) -> set[str]:
    """Return the texts by which an actor, or who caused it first, may be looked for."""
    names = {actor.id, actor.name, actor.key_prefix} - {""}
    return names if actor.on_behalf_of is None else names | list_actor_names(actor.on_behalf_of)


def is_action_of(action: str, action_or_group: str) -> bool:
    """Tell whether an action is the one that is named, or one of its group."""
    return action == action_or_group or action.startswith(f"{action_or_group}.")


def seal_record(record: NewRecord, *, version: int, previous: str) -> AdministrationRecord:
    """Put a record behind the one whose checksum is `previous`."""
    unsealed = AdministrationRecord(**structs.asdict(record), version=version, checksum="")
    checksum = codec.chain_checksum(previous, codec.encode_canonical(unsealed))
    return structs.replace(unsealed, checksum=checksum)


def find_broken_record(
    records: Iterable[AdministrationRecord], *, previous: str = "", version: int = 0
) -> AdministrationRecord | None:
    """Return the first record that is not as it was sealed, or is out of order; None for none.

    `previous` and `version` are those of the record before the first.
    """
    for record in records:
        bare = structs.replace(record, checksum="")
        expected = codec.chain_checksum(previous, codec.encode_canonical(bare))
        if record.version != version + 1 or record.checksum != expected:
            return record
        previous, version = record.checksum, record.version
    return None
