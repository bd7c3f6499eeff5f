"""The results of a frame's rows hold no secret, inline or by reference."""

import pytest
from tests.support.working import ORGANIZATION, TENANT

from noetl_contracts import codec
from noetl_contracts.payloads import RESULT_INLINE_BYTES_MAX
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain.masking import Mask
from noetl_worker.keeping import Keeper
from noetl_worker.stores import Place, Remembered, TenantPayloads

SECRET = "a-secret-of-thirty-characters!"  # noqa: S105 - it stands for one


@pytest.mark.parametrize("padding", [0, RESULT_INLINE_BYTES_MAX])
async def test_a_secret_in_the_results_of_rows_is_masked(padding: int) -> None:
    store, mask = MemoryPayloads(), Mask()
    mask.learn(SECRET)
    place = Place(tenant_id=TENANT, organization_id=ORGANIZATION)
    payloads = TenantPayloads(store, place=place, remembered=Remembered(bytes_max=1000))
    rows = [{"n": 1, "echo": SECRET, "padding": "x" * padding}]
    envelope = await Keeper(payloads=payloads, mask=mask).keep_list(rows)
    assert (envelope.reference is not None) == (padding > 0)
    assert SECRET.encode() not in codec.encode(envelope)
    assert all(SECRET.encode() not in data for data in store.bytes_by_key.values())
