"""Messages from outside and the commands that wait for them, over every adapter."""

from datetime import timedelta
from typing import Any

import pytest
from tests.support.storage import NOON, ORGANIZATION, TENANT, Stores, a_request, an_execution

from noetl_contracts import codec
from noetl_contracts.commands.waits import MessageWait
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import InboxMessage, InboxOutcome

ADDRESS = "signal/go"
OTHER = "901/hold/1/1"


def a_letter(body: str = "one", *, address: str = ADDRESS) -> InboxMessage:
    return InboxMessage(
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        address=address,
        digest=codec.digest_hex(body.encode()),
        data=body.encode(),
    )


def a_wait(**fields: Any) -> MessageWait:
    values = {"key": "hold/1/1", "task": "hold", "mode": "signal", "address": ADDRESS}
    return MessageWait(**{**values, "timeout_s": 60.0, **fields})


async def keep(
    stores: Stores,
    inbox_message: InboxMessage,
    *,
    open_wait: str | None = None,
    is_single: bool = False,
) -> InboxOutcome:
    reception, _ = await stores.requests.keep_message(
        inbox_message, open_wait=open_wait, is_single=is_single
    )
    return reception


async def hand_over(stores: Stores, letter_id: int, wait: str = OTHER) -> bool:
    return await stores.requests.deliver_message(letter_id, open_wait=wait, request=a_request())


async def show(
    stores: Stores,
    execution: ExecutionId,
    wait: MessageWait | None,
    *,
    command: str = "501",
    version: int = 1,
    since_s: float = 0.0,
) -> None:
    """Project a command that waits, or that has stopped waiting."""
    owned = {"execution_id": execution, "tenant_id": TENANT, "organization_id": ORGANIZATION}
    row: dict[str, Any] = {
        **owned,
        "command_id": command,
        "run_id": "9",
        "step_name": "hold",
        "unit": "step",
        "pool": "default",
        "lane": "io",
        "stage_id": None,
        "status": "ISSUED" if wait is None else "PARKED",
        "attempts": 1,
        "worker_id": None,
        "worker_locator": None,
        "locality": {},
        "rejected": 0,
        "issued_event_id": "1",
        "started_event_id": None,
        "terminal_event_id": None,
        "issued_at": NOON,
        "heard_at": NOON + timedelta(seconds=since_s),
        "completed_at": None,
        **({} if wait is None else {"wait": codec.to_builtins(wait)}),
    }
    execution_row = {
        **owned,
        "path": "p",
        "status": "RUNNING",
        "version": version,
        "envelope_checksum": "",
        "ended_at": None,
    }
    left_out = await stores.projections.apply_rows(
        shard=0,
        rows={"command": [row], "execution": [execution_row]},
        positions={execution: (version - 1, version)},
    )
    assert left_out == []
    (shown,) = await stores.projections.list_rows("command", execution)
    assert shown == row


async def test_the_first_letter_is_kept_repeated_and_refuses_another(stores: Stores) -> None:
    assert await keep(stores, a_letter()) is InboxOutcome.KEPT
    assert await keep(stores, a_letter()) is InboxOutcome.REPEATED
    assert await keep(stores, a_letter("two")) is InboxOutcome.REFUSED
    assert await keep(stores, a_letter("two", address="signal/other")) is InboxOutcome.KEPT
    message = await stores.requests.find_message(
        ADDRESS, tenant_id=TENANT, organization_id=ORGANIZATION
    )
    assert message is not None
    assert message.data == b"one"


@pytest.mark.parametrize("is_single", [True, False])
async def test_only_an_address_that_is_used_again_takes_another_letter(
    stores: Stores, *, is_single: bool
) -> None:
    _, letter_id = await stores.requests.keep_message(a_letter(), open_wait=None, is_single=True)
    assert await hand_over(stores, letter_id)
    second = await keep(stores, a_letter("two"), is_single=is_single)
    assert second is (InboxOutcome.REFUSED if is_single else InboxOutcome.KEPT)


async def test_what_a_wait_has_been_told_is_repeated_or_refused_while_it_is_shown(
    stores: Stores,
) -> None:
    _, letter_id = await stores.requests.keep_message(a_letter(), open_wait=OTHER, is_single=False)
    assert await hand_over(stores, letter_id)
    assert await keep(stores, a_letter(), open_wait=OTHER) is InboxOutcome.REPEATED
    assert await keep(stores, a_letter("two"), open_wait=OTHER) is InboxOutcome.REFUSED
    assert await keep(stores, a_letter(), open_wait=None) is InboxOutcome.REPEATED
    assert await keep(stores, a_letter(), open_wait="902/hold/1/1") is InboxOutcome.KEPT


async def test_a_letter_is_handed_over_once_and_with_its_request(stores: Stores) -> None:
    _, letter_id = await stores.requests.keep_message(a_letter(), open_wait=None, is_single=False)
    request = a_request()
    for is_first in (True, False):
        handed = await stores.requests.deliver_message(letter_id, open_wait=OTHER, request=request)
        assert handed is is_first
    assert await stores.requests.find_request(request.request_id) is not None
    assert (await stores.outbox.count_backlog())[0] == 1
    assert not await hand_over(stores, 10**9)


async def test_waits_are_listed_by_address_and_mode_until_they_are_over(stores: Stores) -> None:
    first, second = an_execution(), an_execution()
    approval = a_wait(mode="approval", address="approval/7", options=["yes"], title="Sure?")
    await show(stores, first, a_wait(), since_s=5)
    await show(stores, second, approval)
    place: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
    waits = await stores.projections.list_waits(**place, waits_max=9)
    assert [wait.execution_id for wait in waits] == [second, first]
    assert waits[0].wait == approval
    (by_mode,) = await stores.projections.list_waits(**place, mode="approval", waits_max=9)
    (by_address,) = await stores.projections.list_waits(**place, address=ADDRESS, waits_max=9)
    (of_first,) = await stores.projections.list_waits(**place, execution_id=first, waits_max=9)
    assert of_first.execution_id == first
    assert (by_mode.execution_id, by_address.execution_id) == (second, first)
    assert (by_address.command_id, by_address.step) == ("501", "hold")
    await show(stores, first, None, version=2)
    assert await stores.projections.list_waits(**place, address=ADDRESS, waits_max=9) == []


async def test_a_letter_is_matched_with_the_longest_wait_until_it_is_handed_over(
    stores: Stores,
) -> None:
    _, letter_id = await stores.requests.keep_message(a_letter(), open_wait=None, is_single=False)
    assert await stores.requests.list_matches(matches_max=9) == []
    late, early = an_execution(), an_execution()
    await show(stores, late, a_wait(), since_s=9)
    await show(stores, early, a_wait())
    (match,) = await stores.requests.list_matches(matches_max=9)
    assert (match.letter.letter_id, match.letter.data) == (letter_id, b"one")
    assert match.wait.execution_id == early
    assert await hand_over(stores, letter_id)
    assert await stores.requests.list_matches(matches_max=9) == []
