"""Requests and outbox in memory."""

import re
from collections.abc import Sequence
from datetime import timedelta

from msgspec import structs

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import (
    REAPER_REQUEST,
    InboxMatch,
    InboxMessage,
    InboxOutcome,
    NewMessage,
    OpenWait,
    OutboxRow,
    Request,
)
from noetl_contracts.requests.dead_letters import DeadLetterAct
from noetl_contracts.status import CommandStatus
from noetl_storage.ledger import surfaces
from noetl_storage.memory.store import MemoryStore, StoredInboxMessage, StoredMessage, StoredRequest

_COMMAND_ID = re.compile(r"command/([0-9]{1,19})/([0-9]{1,9})")


class MemoryRequests:
    """Keeps a request and its message together."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def submit_request(self, request: Request) -> ExecutionId:
        """Keep a request; return its execution, or that of the earlier one with the same key."""
        earlier = self._store.find_request(request)
        if earlier is not None:
            return earlier.execution_id
        self._store.request_by_id[request.request_id] = StoredRequest(
            request=request, sent_at=self._store.now()
        )
        self._enqueue_request(request, message_id=request.request_id)
        return request.execution_id

    async def find_request(self, request_id: str) -> Request | None:
        """Return a request that was kept, settled or not, or None."""
        stored_request = self._store.request_by_id.get(request_id)
        return None if stored_request is None else stored_request.request

    async def find_keyed_request(self, key: str, *, tenant_id: TenantId) -> Request | None:
        """Return what a tenant has asked for under an idempotency key, or None."""
        for stored_request in self._store.request_by_id.values():
            if (stored_request.request.tenant_id, stored_request.request.idempotency_key) == (
                tenant_id,
                key,
            ):
                return stored_request.request
        return None

    async def redrive_requests(self, *, older_than_s: float, requests_max: int) -> int:
        """Send requests again that no planner has settled; return how many."""
        before = self._store.now() - timedelta(seconds=older_than_s)
        messages = {(m.row.execution_id, m.row.subject) for m in self._store.message_by_id.values()}
        stranded = [
            entry
            for entry in self._store.request_by_id.values()
            if entry.settled_at is None
            and entry.sent_at < before
            and (entry.request.execution_id, entry.request.subject) not in messages
        ]
        stranded = sorted(stranded, key=lambda entry: entry.sent_at)[:requests_max]
        for entry in stranded:
            entry.sends += 1
            entry.sent_at = self._store.now()
            self._enqueue_request(
                entry.request, message_id=f"{entry.request.request_id}:{entry.sends}"
            )
        return len(stranded)

    async def forget_requests(self, *, settled_for_s: float, requests_max: int) -> int:
        """Delete requests of the reaper that were settled so long ago; return how many.

        A request with an idempotency key stays: a repetition gets its answer.
        """
        before = self._store.now() - timedelta(seconds=settled_for_s)
        settled_requests = [
            (stored_request.settled_at, request_id)
            for request_id, stored_request in self._store.request_by_id.items()
            if stored_request.request.kind == REAPER_REQUEST
            and stored_request.request.idempotency_key is None
            and stored_request.settled_at is not None
            and stored_request.settled_at < before
        ]
        for _, request_id in sorted(settled_requests)[:requests_max]:
            del self._store.request_by_id[request_id]
        return min(len(settled_requests), requests_max)

    async def keep_message(
        self, inbox_message: InboxMessage, *, open_wait: str | None, is_single: bool
    ) -> tuple[InboxOutcome, int]:
        """Keep a message from outside; return what became of it and the id of the one kept."""
        latest = max(
            self._list_at_address(inbox_message),
            key=lambda stored_inbox_message: stored_inbox_message.letter.letter_id,
            default=None,
        )
        if latest is not None:
            is_waiting = latest.taken_by is None
            is_its_own = open_wait is None or latest.taken_by == open_wait
            if is_single or is_waiting or is_its_own:
                if latest.letter.digest == inbox_message.digest:
                    return InboxOutcome.REPEATED, latest.letter.letter_id
                if is_single or is_waiting or open_wait is not None:
                    return InboxOutcome.REFUSED, latest.letter.letter_id
        letter_id = len(self._store.letter_by_id) + 1
        stored_message = structs.replace(inbox_message, letter_id=letter_id)
        self._store.letter_by_id[letter_id] = StoredInboxMessage(letter=stored_message)
        return InboxOutcome.KEPT, letter_id

    async def find_message(
        self, address: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> InboxMessage | None:
        """Return the latest inbox message at an address, delivered or not, or None."""
        sought = InboxMessage(
            tenant_id=tenant_id,
            organization_id=organization_id,
            address=address,
            digest="",
            data=b"",
        )
        inbox_message = max(
            self._list_at_address(sought),
            key=lambda stored_inbox_message: stored_inbox_message.letter.letter_id,
            default=None,
        )
        return None if inbox_message is None else inbox_message.letter

    async def deliver_message(self, letter_id: int, *, open_wait: str, request: Request) -> bool:
        """Deliver an inbox message to a waiting command; False if it was delivered before."""
        stored_letter = self._store.letter_by_id.get(letter_id)
        if stored_letter is None or stored_letter.taken_by is not None:
            return False
        stored_letter.taken_by = open_wait
        await self.submit_request(request)
        return True

    async def list_matches(self, *, matches_max: int) -> list[InboxMatch]:
        """Return undelivered inbox messages for which a command waits."""
        open_waits = surfaces.read_open_waits(
            self._store.row_by_key_by_surface.get("command", {}).values()
        )
        inbox_matches = [
            InboxMatch(letter=stored_letter.letter, wait=wait)
            for stored_letter in self._store.letter_by_id.values()
            if stored_letter.taken_by is None
            for wait in [
                open_wait
                for open_wait in open_waits
                if _is_message_for(stored_letter.letter, open_wait)
            ][:1]
        ]
        return inbox_matches[:matches_max]

    def _list_at_address(self, inbox_message: InboxMessage) -> list[StoredInboxMessage]:
        address_key = (
            inbox_message.tenant_id,
            inbox_message.organization_id,
            inbox_message.address,
        )
        return [
            stored_inbox_message
            for stored_inbox_message in self._store.letter_by_id.values()
            if (
                stored_inbox_message.letter.tenant_id,
                stored_inbox_message.letter.organization_id,
                stored_inbox_message.letter.address,
            )
            == address_key
        ]

    def _enqueue_request(self, request: Request, *, message_id: str) -> None:
        message = NewMessage(
            execution_id=request.execution_id,
            subject=request.subject,
            message_id=message_id,
            data=request.data,
        )
        self._store.enqueue_message(message, owner=None, lease_s=0.0)


class MemoryOutbox:
    """Leases messages in order; a leased row holds back the later ones of its execution."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def claim_rows(self, *, owner: str, lease_s: float, rows_max: int) -> list[OutboxRow]:
        """Lease unleased rows and rows whose lease has ended, in order within an execution.

        Commands that were on their way already, and have begun, are removed instead.
        """
        now = self._store.now()
        self._remove_spent_commands()
        held_back: set[str] = set()
        claimed: list[OutboxRow] = []
        for outbox_id in sorted(self._store.message_by_id):
            if len(claimed) == rows_max:
                break
            stored_message = self._store.message_by_id[outbox_id]
            execution = stored_message.row.execution_id
            if stored_message.leased_until is not None and stored_message.leased_until > now:
                held_back.add(execution)
            elif execution not in held_back:
                stored_message.lease_owner = owner
                stored_message.leased_until = self._store.time_after(lease_s)
                claimed.append(stored_message.row)
        return claimed

    def _remove_spent_commands(self) -> None:
        commands = self._store.row_by_key_by_surface.get("command", {})
        for outbox_id, stored_message in list(self._store.message_by_id.items()):
            match = _COMMAND_ID.fullmatch(stored_message.row.message_id)
            is_due = (
                stored_message.leased_until is not None
                and stored_message.leased_until <= self._store.now()
            )
            if match is None or not is_due:
                continue
            command = commands.get((stored_message.row.execution_id, match[1]))
            if command is not None and (
                command["status"] != CommandStatus.ISSUED or command["attempts"] > int(match[2])
            ):
                del self._store.message_by_id[outbox_id]

    async def settle_rows(self, outbox_ids: Sequence[int]) -> None:
        """Remove rows whose publication was acknowledged."""
        for outbox_id in outbox_ids:
            self._store.message_by_id.pop(outbox_id, None)

    async def release_rows(self, outbox_ids: Sequence[int]) -> None:
        """Give rows back that could not be published."""
        for outbox_id in outbox_ids:
            stored_message = self._store.message_by_id.get(outbox_id)
            if stored_message is not None:
                _free_lease(stored_message)

    async def count_backlog(self) -> tuple[int, float]:
        """Return how many rows wait and the age of the oldest in seconds."""
        created_at_times = [
            stored_message.created_at for stored_message in self._store.message_by_id.values()
        ]
        oldest_s = (
            (self._store.now() - min(created_at_times)).total_seconds() if created_at_times else 0.0
        )
        return len(created_at_times), oldest_s


def _is_message_for(inbox_message: InboxMessage, wait: OpenWait) -> bool:
    return (inbox_message.tenant_id, inbox_message.organization_id, inbox_message.address) == (
        wait.tenant_id,
        wait.organization_id,
        wait.wait.address,
    )


def _free_lease(stored_message: StoredMessage) -> None:
    stored_message.lease_owner = None
    stored_message.leased_until = None


class MemoryDeadLetterLog:
    """Keeps who sent dead letters again, and who dropped them."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def record_act(self, act: DeadLetterAct) -> DeadLetterAct:
        """Keep an act; return it with its number and time."""
        acts = self._store.dead_letter_acts
        dead_letter_act = structs.replace(act, act_id=len(acts) + 1, acted_at=self._store.now())
        acts.append(dead_letter_act)
        return dead_letter_act

    async def find_last_act(
        self, sequence: int, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> DeadLetterAct | None:
        """Return the latest act on a letter, or None."""
        owned = self._list_owned((tenant_id, organization_id))
        return next((act for act in owned if act.sequence == sequence), None)

    async def list_acts(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        before: int | None = None,
        acts_max: int,
    ) -> list[DeadLetterAct]:
        """Return acts, the latest first, perhaps those before a number."""
        owned = self._list_owned((tenant_id, organization_id))
        return [act for act in owned if before is None or act.act_id < before][:acts_max]

    def _list_owned(self, owner: tuple[TenantId, OrganizationId]) -> list[DeadLetterAct]:
        return [
            act
            for act in reversed(self._store.dead_letter_acts)
            if (act.tenant_id, act.organization_id) == owner
        ]
