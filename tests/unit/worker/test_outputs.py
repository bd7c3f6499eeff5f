"""Outputs of a frame's rows: never more of them in memory than the frame's bytes."""

import asyncio
from typing import Any

import pytest
from tests.support.working import ORGANIZATION, TENANT

from noetl_contracts import codec
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain.masking import Mask
from noetl_worker.lanes.outputs import Outputs
from noetl_worker.stores import Place, Remembered, TenantPayloads

pytestmark = pytest.mark.unit

TEXT = "x" * 100


def outputs(bytes_max: int, mask: Mask | None = None) -> Outputs:
    place = Place(tenant_id=TENANT, organization_id=ORGANIZATION)
    payloads = TenantPayloads(MemoryPayloads(), place=place, remembered=Remembered(bytes_max=0))
    return Outputs(payloads=payloads, mask=mask or Mask(), bytes_max=bytes_max)


async def joined(found: Outputs, rows: list[int]) -> Any:
    return codec.decode(b"[" + b"".join([piece async for piece in found.pieces(rows)]) + b"]")


async def test_what_fits_stays_in_memory() -> None:
    found = outputs(10_000)
    for row in (1, 0):
        await found.put(row, {"row": row})
    assert not found.has_parts
    assert found.held(found.rows) == [{"row": 0}, {"row": 1}]


async def test_no_more_is_held_than_the_bytes_of_a_frame() -> None:
    found = outputs(1_000)
    for row in reversed(range(100)):
        await found.put(row, [row, TEXT])
        assert len(codec.encode(list(found._held.values()))) <= 1_200
    assert found.has_parts
    wanted = [[row, TEXT] for row in range(100)]
    assert await joined(found, found.rows) == wanted
    assert [value for _, value in await found.all()] == wanted


async def test_rows_that_gave_nothing_are_null() -> None:
    found = outputs(10)
    await found.put(1, TEXT)
    assert await joined(found, [0, 1, 2]) == [None, TEXT, None]


async def test_secrets_are_masked_before_they_are_stored() -> None:
    mask = Mask()
    mask.learn("a-very-long-secret-indeed")
    found = outputs(10, mask)
    await found.put(0, "a-very-long-secret-indeed")
    assert await joined(found, [0]) == ["***"]


async def test_rows_of_many_lanes_lose_nothing_when_one_is_cancelled() -> None:
    found = outputs(300)
    lanes = [asyncio.ensure_future(found.put(row, [row, TEXT])) for row in range(20)]
    await asyncio.sleep(0)
    lanes[3].cancel()
    await asyncio.gather(*lanes, return_exceptions=True)
    assert await joined(found, list(range(20))) == [[row, TEXT] for row in range(20)]
