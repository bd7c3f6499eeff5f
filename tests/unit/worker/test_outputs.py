"""Outputs of a frame's rows: never more of them in memory than the frame's bytes."""

import asyncio
from typing import Any

import pytest
from tests.support.working import ORGANIZATION, TENANT

from noetl_contracts import codec
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.payloads.tenant_payloads import PayloadCache, PayloadOwner, TenantPayloads
from noetl_worker.runner.frame import RowOutputs

pytestmark = pytest.mark.unit

TEXT = "x" * 100


def outputs(bytes_max: int, mask: SecretMask | None = None) -> RowOutputs:
    place = PayloadOwner(tenant_id=TENANT, organization_id=ORGANIZATION)
    payloads = TenantPayloads(MemoryPayloads(), place=place, cache=PayloadCache(bytes_max=0))
    return RowOutputs(payloads=payloads, mask=mask or SecretMask(), bytes_max=bytes_max)


async def joined(row_outputs: RowOutputs, rows: list[int]) -> Any:
    return codec.decode_json(
        b"[" + b"".join([piece async for piece in row_outputs.iterate_pieces(rows)]) + b"]"
    )


async def test_what_fits_stays_in_memory() -> None:
    found = outputs(10_000)
    for row in (1, 0):
        await found.put_output(row, {"row": row})
    assert not found.has_parts
    assert found.list_held(found.row_indices) == [{"row": 0}, {"row": 1}]


async def test_no_more_is_held_than_the_bytes_of_a_frame() -> None:
    found = outputs(1_000)
    for row in reversed(range(100)):
        await found.put_output(row, [row, TEXT])
        assert len(codec.encode_json(list(found._output_by_row.values()))) <= 1_200
    assert found.has_parts
    wanted = [[row, TEXT] for row in range(100)]
    assert await joined(found, found.row_indices) == wanted
    assert [value for _, value in await found.list_all()] == wanted


async def test_rows_that_gave_nothing_are_null() -> None:
    found = outputs(10)
    await found.put_output(1, TEXT)
    assert await joined(found, [0, 1, 2]) == [None, TEXT, None]


async def test_secrets_are_masked_before_they_are_stored() -> None:
    mask = SecretMask()
    mask.learn_secrets("a-very-long-secret-indeed")
    found = outputs(10, mask)
    await found.put_output(0, "a-very-long-secret-indeed")
    assert await joined(found, [0]) == ["***"]


async def test_rows_of_many_lanes_lose_nothing_when_one_is_cancelled() -> None:
    found = outputs(300)
    lanes = [asyncio.ensure_future(found.put_output(row, [row, TEXT])) for row in range(20)]
    await asyncio.sleep(0)
    lanes[3].cancel()
    await asyncio.gather(*lanes, return_exceptions=True)
    assert await joined(found, list(range(20))) == [[row, TEXT] for row in range(20)]
