"""Who sent dead letters again, and who dropped them, is kept for good."""

from typing import Any

from tests.support.storage import ORGANIZATION, TENANT, Stores

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.requests.dead_letters import DeadLetterAct, DeadLetterAction

PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}


def an_act(
    sequence: int, action: DeadLetterAction = DeadLetterAction.REQUEUE, **changes: Any
) -> DeadLetterAct:
    values: dict[str, Any] = {
        **PLACE,
        "action": action,
        "sequence": sequence,
        "stream": "NOETL_INGEST",
        "consumer": "planner-0",
        "subject": f"noetl.ingest.0.{TENANT}.{ORGANIZATION}",
        "reason": "not a fact batch",
        "delivered": 1,
        "requeued": 2,
        "sha256": "0" * 64,
        "who": "ann",
        "why": "it is a test" if action is DeadLetterAction.DROP else None,
    }
    return DeadLetterAct(**{**values, **changes})


async def test_an_act_is_kept_as_it_was(stores: Stores) -> None:
    kept = await stores.dead_letter_log.record_act(an_act(7, DeadLetterAction.DROP))
    assert kept.acted_at is not None
    assert await stores.dead_letter_log.find_last_act(7, **PLACE) == kept
    assert await stores.dead_letter_log.list_acts(**PLACE, acts_max=9) == [kept]


async def test_acts_are_listed_page_by_page_the_latest_first(stores: Stores) -> None:
    log = stores.dead_letter_log
    first, second, third = [await log.record_act(an_act(number)) for number in (1, 2, 1)]
    page = await log.list_acts(**PLACE, acts_max=2)
    assert page == [third, second]
    assert await log.list_acts(**PLACE, before=second.act_id, acts_max=2) == [first]
    assert await log.find_last_act(1, **PLACE) == third


async def test_another_owner_sees_nothing_of_them(stores: Stores) -> None:
    await stores.dead_letter_log.record_act(an_act(7))
    other: dict[str, Any] = {"tenant_id": TenantId("x"), "organization_id": OrganizationId("y")}
    assert await stores.dead_letter_log.find_last_act(7, **other) is None
    assert await stores.dead_letter_log.list_acts(**other, acts_max=9) == []
