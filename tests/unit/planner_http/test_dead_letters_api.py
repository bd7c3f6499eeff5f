"""Dead letters over the API: seen, sent again, dropped, and who did it."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld
from tests.support.storage import ORGANIZATION, TENANT

from noetl_contracts import subjects
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_messaging.memory.consumer import MemoryConsumer
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Message
from noetl_planner.api.triggers import dead_letters

Api = AsyncTestClient[Litestar]
OWN = subjects.build_ingest_subject(0, TENANT, ORGANIZATION)
OTHERS = subjects.build_ingest_subject(0, TenantId("other"), OrganizationId("org"))


@pytest.fixture(autouse=True)
async def _streams(world: ApiWorld) -> None:
    await world.broker.ensure_streams()


async def buried(
    world: ApiWorld, data: bytes = b'{"poison": 1}', *, subject: str = OWN, reason: str = "odd"
) -> int:
    """Have a message given up; return its letter's number."""
    dead_letters = MemoryDeadLetters(world.broker)
    name = f"m-{await dead_letters.count_letters()}"
    world.broker.store_message(Message(subject=subject, message_id=name, data=data))
    await give_up(world, reason=reason)
    return (await dead_letters.list_letters(letters_max=5000))[-1].sequence


async def give_up(world: ApiWorld, *, reason: str = "odd") -> None:
    consumer = MemoryConsumer(world.broker, stream=topology.INGEST, name="planner-0")
    (delivery,) = await consumer.fetch_batch(messages_max=1, wait_s=1)
    await MemoryDeadLetters(world.broker).bury_delivery(
        delivery, stream=topology.INGEST, consumer="planner-0", reason=reason
    )


async def asked(api: Api, path: str, **body: Any) -> tuple[int, Any]:
    answer = await (api.post(path, json=body) if body else api.get(path))
    return answer.status_code, answer.json()


async def waiting(world: ApiWorld) -> int:
    consumer = MemoryConsumer(world.broker, stream=topology.INGEST, name="planner-0")
    return sum(await consumer.count_pending())


async def test_a_letter_is_listed_and_shown_with_its_message(api: Api, world: ApiWorld) -> None:
    sequence = await buried(world)
    _, page = await asked(api, "/api/dead-letters")
    (dead_letter,) = page["letters"]
    assert (dead_letter["sequence"], dead_letter["reason"], dead_letter["requeued"]) == (
        sequence,
        "odd",
        0,
    )
    assert (dead_letter["subject"], dead_letter["bytes"], page["has_more"]) == (OWN, 13, False)
    status, shown = await asked(api, f"/api/dead-letters/{sequence}")
    assert status == 200
    assert shown == {**dead_letter, "message": {"poison": 1}}


@pytest.mark.parametrize("data", [b"\xff\x00", b"[" * 100_000, b"{"])
async def test_what_is_no_json_is_shown_as_text(api: Api, world: ApiWorld, data: bytes) -> None:
    _, shown = await asked(api, f"/api/dead-letters/{await buried(world, data)}")
    assert isinstance(shown["message"], str)


async def test_letters_come_page_by_page(api: Api, world: ApiWorld) -> None:
    numbers = [await buried(world) for _ in range(5)]
    seen, after = [], 0
    for _ in range(3):
        _, page = await asked(api, f"/api/dead-letters?limit=2&after={after}")
        seen.append([item["sequence"] for item in page["letters"]])
        after = page["next_after"]
    assert seen == [numbers[:2], numbers[2:4], numbers[4:]]
    assert page["has_more"] is False


async def test_an_answer_looks_at_so_many_letters_and_says_that_there_are_more(
    api: Api, world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LOOKED_AT_MAX", 2)
    monkeypatch.setattr(dead_letters, "HELD_MAX", 1)
    for _ in range(3):
        await buried(world, subject=OTHERS)
    own = await buried(world)
    _, page = await asked(api, "/api/dead-letters")
    assert (page["letters"], page["has_more"]) == ([], True)
    _, page = await asked(api, f"/api/dead-letters?after={page['next_after']}")
    assert [item["sequence"] for item in page["letters"]] == [own]


async def test_a_letter_that_is_sent_again_is_gone_and_who_did_it_is_known(
    api: Api, world: ApiWorld
) -> None:
    sequence = await buried(world)
    place = f"/api/dead-letters/{sequence}/requeue"
    status, first = await asked(api, place, who="ann")
    assert (status, first["is_repeated"], first["act"]["who"]) == (200, False, "ann")
    assert await waiting(world) == 1
    status, second = await asked(api, place, who="bob")
    assert (status, second) == (200, {"act": first["act"], "is_repeated": True})
    assert await waiting(world) == 1
    assert (await asked(api, "/api/dead-letters"))[1]["letters"] == []
    _, log = await asked(api, "/api/dead-letters/log")
    assert log["acts"] == [first["act"]]
    status, told = await asked(api, f"/api/dead-letters/{sequence}")
    assert status == 404
    assert "sent again by ann" in told["detail"]


async def test_a_message_that_fails_again_returns_with_its_count(api: Api, world: ApiWorld) -> None:
    sequence = await buried(world)
    for _ in range(2):
        await asked(api, f"/api/dead-letters/{sequence}/requeue", who="ann")
        await give_up(world, reason="odd again")
        (dead_letter,) = (await asked(api, "/api/dead-letters"))[1]["letters"]
        sequence = dead_letter["sequence"]
    assert (dead_letter["requeued"], dead_letter["reason"]) == (2, "odd again")


async def test_a_letter_is_dropped_with_a_reason(api: Api, world: ApiWorld) -> None:
    sequence = await buried(world)
    place = f"/api/dead-letters/{sequence}/drop"
    for wrong in ({"who": "ann"}, {"who": "ann", "reason": ""}, {"who": "ann", "reason": " "}):
        assert (await asked(api, place, **wrong))[0] == 400
    status, done = await asked(api, place, who="ann", reason="of an old release")
    assert (status, done["act"]["action"], done["act"]["why"]) == (200, "drop", "of an old release")
    assert await waiting(world) == 0
    status, told = await asked(api, f"/api/dead-letters/{sequence}/requeue", who="bob")
    assert (status, told["code"]) == (409, "letter_gone")
    assert "dropped by ann" in told["detail"]


@pytest.mark.parametrize("act", ["requeue", "drop"])
async def test_letters_of_others_are_not_there(api: Api, world: ApiWorld, act: str) -> None:
    sequence = await buried(world, subject=OTHERS)
    assert (await asked(api, "/api/dead-letters"))[1]["letters"] == []
    assert (await asked(api, f"/api/dead-letters/{sequence}"))[0] == 404
    body = {"who": "ann", "reason": "r"} if act == "drop" else {"who": "ann"}
    assert (await asked(api, f"/api/dead-letters/{sequence}/{act}", **body))[0] == 404
    assert await MemoryDeadLetters(world.broker).count_letters() == 1


async def test_a_letter_whose_subject_names_nobody_is_the_installations(
    api: Api, world: ApiWorld
) -> None:
    sequence = await buried(world, subject="noetl.ingest.0.a.b.c.d")
    (dead_letter,) = (await asked(api, "/api/dead-letters"))[1]["letters"]
    assert dead_letter["sequence"] == sequence


@pytest.mark.parametrize("sequence", ["0", "-1", "999", str(2**63), str(2**80)])
async def test_a_number_that_no_letter_has_is_not_found(api: Api, sequence: str) -> None:
    for path in ("", "/requeue"):
        body = {"who": "ann"} if path else {}
        status, told = await asked(api, f"/api/dead-letters/{sequence}{path}", **body)
        assert status == 404, told
