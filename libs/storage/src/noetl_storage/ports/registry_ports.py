"""Ports of the registry: playbooks by path, credentials by name, each by version."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from noetl_contracts.credentials import SealedCredential
from noetl_contracts.identity.role_bindings import Session
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import CatalogEntry, Request
from noetl_contracts.requests.dead_letters import DeadLetterAct
from noetl_contracts.requests.notifications import (
    DueNotification,
    HeldNotification,
    NotificationRule,
    RuleTest,
    SentNotification,
)
from noetl_contracts.requests.schedules import Schedule, SkippedTimes
from noetl_contracts.requests.triggers import Trigger
from noetl_contracts.requests.webhooks import Webhook


class Catalog(Protocol):
    """Registered playbooks."""

    async def register_playbook(self, entry: CatalogEntry) -> CatalogEntry:
        """Keep a playbook as the next version of its path; the same one keeps its version."""

    async def register_batch(self, entries: list[CatalogEntry]) -> list[CatalogEntry]:
        """Keep playbooks of different paths as `register_playbook` does, all of them or none."""

    async def keep_draft(self, entry: CatalogEntry) -> CatalogEntry:
        """Keep a playbook as a draft of its path, below version zero; the same text keeps it."""

    async def find_playbook(
        self,
        path: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        version: int | None = None,
    ) -> CatalogEntry | None:
        """Return a version or a draft of a playbook, the latest version when none is named."""

    async def get_entry(self, catalog_id: str) -> CatalogEntry:
        """Return an entry by identity; raises `KeyError`."""

    async def list_playbooks(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, entries_max: int
    ) -> list[CatalogEntry]:
        """Return the latest version of every playbook, by path."""


class Credentials(Protocol):
    """Sealed credentials by name and version; nobody here can open them."""

    async def put_credential(
        self, sealed: SealedCredential, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> None:
        """Keep a version; raises `VersionConflict` when that version of the name is taken."""

    async def find_credential(
        self,
        name: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        version: int | None = None,
    ) -> SealedCredential | None:
        """Return a version of a credential, the latest when none is named."""

    async def list_credential_names(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, names_max: int
    ) -> list[str]:
        """Return the names of all credentials, in order."""


class Schedules(Protocol):
    """What starts playbooks by the clock; a firing and its request are one transaction."""

    async def put_schedule(self, schedule: Schedule) -> Schedule:
        """Keep a schedule under its name; one that is there keeps its identity and its past."""

    async def find_schedule(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Schedule | None:
        """Return a schedule by name, or None."""

    async def list_schedules(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, schedules_max: int
    ) -> list[Schedule]:
        """Return the schedules in the order of their names."""

    async def switch_schedule(self, schedule: Schedule) -> bool:
        """Keep whether a schedule is enabled, and its next time; False when it was changed."""

    async def remove_schedule(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a schedule; False when there was none."""

    async def list_due_schedules(self, *, now: datetime, schedules_max: int) -> list[Schedule]:
        """Return enabled schedules whose next time has come, the longest due first.

        Those of a suspended tenant wait.
        """

    async def fire_schedule(
        self,
        schedule: Schedule,
        *,
        nominal_at: datetime,
        next_at: datetime | None,
        request: Request,
    ) -> ExecutionId | None:
        """Ask for an execution and move on; None when the schedule is no longer as it was read."""

    async def skip_times(
        self, schedule: Schedule, skipped: SkippedTimes, *, next_at: datetime | None
    ) -> bool:
        """Move on without an execution, and record the times that are passed over.

        Does neither, and returns False, when the schedule is no longer as it was read. Times that
        the same execution kept from firing share a record; a schedule keeps its newest 100.
        """

    async def list_skipped_times(
        self, schedule_ids: Sequence[str], *, skips_max: int
    ) -> dict[str, list[SkippedTimes]]:
        """Return the newest records of times passed over, newest first, by their schedule."""


class Notifications(Protocol):
    """Rules, and what was sent by them; a notification and its request are one transaction."""

    async def put_rule(self, rule: NotificationRule) -> None:
        """Keep a rule under its name, replacing the one before."""

    async def find_rule(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> NotificationRule | None:
        """Return a rule by name, or None."""

    async def list_rules(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, rules_max: int
    ) -> list[NotificationRule]:
        """Return the rules in the order of their names."""

    async def remove_rule(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a rule; False when there was none."""

    async def list_due_notifications(
        self, *, since: datetime, notifications_max: int
    ) -> list[DueNotification]:
        """Return ends, late ones and open approvals since a time that rules of everyone wait for.

        Ends come before late ones, and these before approvals, of each the earliest first.
        """

    async def send_notification(self, due: DueNotification, request: Request) -> bool:
        """Keep a notification with the request of what delivers it.

        False when it was sent, its rule is gone, or its approval was decided.
        """

    async def hold_notification(self, due: DueNotification, item: dict[str, Any]) -> bool:
        """Keep a notification until the quiet hours are over; False when it was kept already.

        Also when its rule is gone, or its approval was decided.
        """

    async def list_held_notifications(self, *, notifications_max: int) -> list[HeldNotification]:
        """Return what rules hold, by rule and the earliest first; at most so many of each.

        Approvals that were decided meanwhile are left out.
        """

    async def send_held_notifications(
        self, held: Sequence[HeldNotification], request: Request
    ) -> bool:
        """Send what a rule holds with one request: all of it or nothing, which is False.

        Nothing is sent when one of them was sent, or decided, since they were listed.
        """

    async def list_rule_tests(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, tests_max: int
    ) -> dict[str, list[RuleTest]]:
        """Return the latest tests of each rule by its name, the latest first.

        They are records of the administration log; those of a rule that was removed are left out.
        """

    async def list_sent_notifications(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, notifications_max: int
    ) -> list[SentNotification]:
        """Return the latest notifications, the latest first."""


class Webhooks(Protocol):
    """What calls from outside start."""

    async def put_webhook(self, webhook: Webhook) -> None:
        """Keep a webhook under its name, replacing the one before."""

    async def find_webhook(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Webhook | None:
        """Return a webhook by name, or None."""

    async def list_webhooks(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, webhooks_max: int
    ) -> list[Webhook]:
        """Return the webhooks in the order of their names."""

    async def remove_webhook(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a webhook; False when there was none."""


class Triggers(Protocol):
    """What messages start."""

    async def put_trigger(self, trigger: Trigger) -> None:
        """Keep a trigger under its name, replacing the one before."""

    async def find_trigger(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Trigger | None:
        """Return a trigger by name, or None."""

    async def list_triggers(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, triggers_max: int
    ) -> list[Trigger]:
        """Return the triggers in the order of their names."""

    async def remove_trigger(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a trigger; False when there was none."""

    async def claim_place(
        self, trigger: Trigger, message_key: str, execution_id: ExecutionId, *, unasked_s: float
    ) -> ExecutionId | None:
        """Claim one of the `max_in_flight` places of a trigger; None while all are taken.

        A message that has a place gets the execution of before. A place is free when its execution
        has ended, or when nobody asked for that within `unasked_s` seconds.
        """

    async def release_place(self, trigger: Trigger, message_key: str) -> None:
        """Give the place of a message back; what is not there is no error."""


class DeadLetterLog(Protocol):
    """Keeps for good who sent dead letters again, and who dropped them."""

    async def record_act(self, act: DeadLetterAct) -> DeadLetterAct:
        """Keep an act; return it with its number and time."""

    async def find_last_act(
        self, sequence: int, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> DeadLetterAct | None:
        """Return the latest act on a letter, or None."""

    async def list_acts(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        before: int | None = None,
        acts_max: int,
    ) -> list[DeadLetterAct]:
        """Return acts, the latest first, perhaps those before a number."""


class Sessions(Protocol):
    """Keeps who is signed in with a browser; times are those of the caller's clock."""

    async def put_session(self, session: Session) -> None:
        """Keep a new session."""

    async def find_session(self, session_hash: str, *, now: datetime) -> Session | None:
        """Return a session that is neither revoked nor over, or None."""

    async def revoke_session(self, session_hash: str, *, now: datetime) -> bool:
        """End a session; False when none was open."""

    async def revoke_person_sessions(self, issuer: str, subject: str, *, now: datetime) -> int:
        """End every session of a person; return how many were open."""

    async def forget_sessions(self, *, before: datetime, sessions_max: int) -> int:
        """Remove sessions that were over before a time, the oldest first; return how many.

        The planner calls it for each new session: no sweep is needed.
        """
