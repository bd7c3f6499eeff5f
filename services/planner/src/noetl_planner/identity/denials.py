"""Denials: refused requests as records of administration, few of them for each who is refused."""

from collections import Counter
from datetime import datetime

from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts.identity.actors import Actor, ActorKind
from noetl_contracts.identity.administration import NewRecord, Outcome
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.lru_cache import LruCache
from noetl_storage.ports.identity_ports import AdministrationLog

ACTION = "access.denied"
# Of the same actor, route and reason one record in so long; it counts those in between.
EVERY_S = 60.0
# A flood of them must not fill the ledger, nor hide those of others: so many of one principal, of
# all whom nobody knows together, and of all principals of an organization together.
RECORDS_A_MINUTE_MAX = 120
RECORDS_OF_ACTOR_MAX = 30
_SUBJECTS_MAX = 4096


class Denial(Struct, frozen=True, kw_only=True):
    """A request that was refused for want of a permission, or of any proof of who sent it."""

    tenant_id: TenantId
    organization_id: OrganizationId
    actor: Actor
    route: str
    reason: str


class _Count:
    """How often something was refused since it was recorded."""

    def __init__(self, recorded_at: datetime) -> None:
        self.recorded_at = recorded_at
        self.unrecorded = 0


class DenialLog:
    """Records denials, and counts what it leaves out."""

    def __init__(self, administration: AdministrationLog, clock: Clock) -> None:
        self._administration = administration
        self._clock = clock
        self._counts = LruCache[tuple[str, ...], _Count](entries_max=_SUBJECTS_MAX)
        self._minute: datetime | None = None
        self._recorded: Counter[tuple[str, ...]] = Counter()

    async def record_denial(self, denial: Denial) -> None:
        """Record a denial, unless one like it was recorded just before."""
        now = self._clock.now()
        actor = denial.actor
        # Accounts of two tenants may have the same name.
        place = denial.tenant_id, denial.organization_id
        key = (*place, actor.kind, actor.issuer, actor.id, denial.route, denial.reason)
        count = self._counts.find_value(key)
        if count is not None and (now - count.recorded_at).total_seconds() < EVERY_S:
            count.unrecorded += 1
            return
        if not self._has_room(now, denial):
            return
        before = 0 if count is None else count.unrecorded
        self._counts.keep_value(key, _Count(now))
        await self._administration.append_record(
            NewRecord(
                tenant_id=denial.tenant_id,
                organization_id=denial.organization_id,
                event_time=now,
                action=ACTION,
                target=denial.route,
                actor=actor,
                outcome=Outcome.REFUSED,
                details={"reason": denial.reason, "before": before},
            )
        )

    def _has_room(self, now: datetime, denial: Denial) -> bool:
        if self._minute is None or (now - self._minute).total_seconds() >= EVERY_S:
            self._minute = now
            self._recorded.clear()
        actor, place = denial.actor, (denial.tenant_id, denial.organization_id)
        if actor.kind is ActorKind.ANONYMOUS:
            # Who has many addresses is many of them.
            bounds: dict[tuple[str, ...], int] = {(actor.kind,): RECORDS_OF_ACTOR_MAX}
        else:
            bounds = {
                (*place, actor.kind, actor.issuer, actor.id): RECORDS_OF_ACTOR_MAX,
                place: RECORDS_A_MINUTE_MAX,
            }
        if any(self._recorded[name] >= most for name, most in bounds.items()):
            return False
        self._recorded.update(bounds.keys())
        return True
