"""The bytes behind a history over HTTP: with their digests, bounded, and nothing sealed."""

import base64
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld, beginning, ending
from tests.support.storage import ORGANIZATION, TENANT, an_execution

from noetl_chassis.seals.credential_seal import TEXT_PREFIX
from noetl_contracts import codec
from noetl_contracts.events.step_events import CallDone
from noetl_contracts.ids import CommandId, ExecutionId, RunId
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef, ResultEnvelope
from noetl_planner.identity.permissions import PERMISSIONS_BY_ROLE, Permission

Api = AsyncTestClient[Litestar]
PLACE = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
SEALED = f'"{TEXT_PREFIX}{"ab" * 4}:{"x" * 40}"'.encode()


async def put(world: ApiWorld, data: bytes) -> PayloadRef:
    return await world.payloads.put_payload(data, media_type=JSON_MEDIA_TYPE, **PLACE)


async def a_run(world: ApiWorld, *references: PayloadRef) -> ExecutionId:
    execution_id = an_execution()
    done = [
        CallDone(
            step="start",
            run_id=RunId("11"),
            command_id=CommandId(str(number)),
            result=ResultEnvelope(status="ok", reference=reference),
        )
        for number, reference in enumerate(references, start=5)
    ]
    await world.append(execution_id, [*beginning(), *done, *ending()])
    return execution_id


async def ask(api: Api, path: str, execution_id: str, **params: Any) -> Any:
    asked = {"execution_id": execution_id, **PLACE, **params}
    answer = await api.get(f"/api/replay/{path}", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def list_pages(api: Api, path: str, execution_id: str, **params: Any) -> list[Any]:
    pages = [await ask(api, path, execution_id, **params)]
    while pages[-1]["has_more"]:
        after = pages[-1]["next_after"]
        pages.append(await ask(api, path, execution_id, **params, after=after))
    return pages


def test_whoever_may_audit_may_read_payloads() -> None:
    """The rule of these routes asks for the first alone."""
    assert all(
        Permission.READ in permissions
        for permissions in PERMISSIONS_BY_ROLE.values()
        if Permission.AUDIT in permissions
    )


async def test_the_bytes_of_a_payload_have_its_digest(api: Api, world: ApiWorld) -> None:
    reference = await put(world, b'{"a": 1.0}')
    execution_id = await a_run(world, reference, reference)
    (content,) = (await ask(api, "contents", execution_id))["contents"]
    data = base64.b64decode(content["content"])
    assert data == b'{"a": 1.0}'
    assert codec.digest_hex(data) == content["sha256"] == reference.sha256
    assert (content["name"], content["left_out"]) == (reference.uri, "")


async def test_what_is_sealed_or_gone_is_named_and_left_out(api: Api, world: ApiWorld) -> None:
    sealed, gone = await put(world, SEALED), await put(world, b"2")
    await world.payloads.delete_payload(gone)
    execution_id = await a_run(world, sealed, gone)
    answer = await ask(api, "contents", execution_id)
    assert [(content["left_out"], content["content"]) for content in answer["contents"]] == [
        ("sealed", None),
        ("missing", None),
    ]
    assert answer["contents"][0]["bytes"] == len(SEALED)
    assert TEXT_PREFIX not in str(answer)


async def test_a_page_ends_before_what_fits_the_next(api: Api, world: ApiWorld) -> None:
    references = [await put(world, text * 40) for text in (b"1", b"2", b"3", b"4")]
    large = await put(world, b"5" * 200)
    execution_id = await a_run(world, *references[:2], large, *references[2:])
    pages = await list_pages(api, "contents", execution_id, bytes_max=100)
    held = [[len(content["content"] or "") for content in page["contents"]] for page in pages]
    assert held == [[56, 56, 0], [56, 56]]
    assert [
        content["left_out"] for page in pages for content in page["contents"] if content["left_out"]
    ] == ["too_large"]


@pytest.mark.parametrize("limit", [1, 2, 200])
async def test_chunks_of_logs_come_as_they_are_kept(api: Api, world: ApiWorld, limit: int) -> None:
    execution_id = await a_run(world)
    names = [
        f"logs/{execution_id}/20261126T2359/0{number}000000-{'a' * 12}-5.1.{'b' * 8}-{number}"
        for number in (1, 2, 3)
    ]
    texts = [b'{"n": 1}', SEALED, b'{"n": 3}']
    for name, text in zip(names, texts, strict=True):
        await world.payloads.put_named(name, text, **PLACE)
    pages = await list_pages(api, "log-chunks", execution_id, limit=limit)
    contents = [content for page in pages for content in page["contents"]]
    assert [content["name"] for content in contents] == names
    assert [content["left_out"] for content in contents] == ["", "sealed", ""]
    assert [content["sha256"] for content in contents] == [codec.digest_hex(t) for t in texts]
    assert base64.b64decode(contents[2]["content"]) == texts[2]
    (few,) = (await ask(api, "log-chunks", execution_id, bytes_max=3, limit=1))["contents"]
    assert (few["left_out"], few["content"]) == ("too_large", None)
