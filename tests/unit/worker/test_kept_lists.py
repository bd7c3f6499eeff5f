"""The results of a frame's rows hold no secret, inline or by reference."""

import pytest
from tests.support.working import ORGANIZATION, TENANT

from noetl_contracts import codec
from noetl_contracts.payloads import RESULT_INLINE_BYTES_MAX
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.payloads.result_store import ResultStore
from noetl_worker.payloads.tenant_payloads import PayloadCache, PayloadOwner, TenantPayloads

SECRET = "a-secret-of-thirty-characters!"  # noqa: S105 - it stands for one


@pytest.mark.parametrize("padding", [0, RESULT_INLINE_BYTES_MAX])
async def test_a_secret_in_the_results_of_rows_is_masked(padding: int) -> None:
    store, mask = MemoryPayloads(), SecretMask()
    mask.learn_secrets(SECRET)
    place = PayloadOwner(tenant_id=TENANT, organization_id=ORGANIZATION)
    payloads = TenantPayloads(store, place=place, cache=PayloadCache(bytes_max=1000))
    rows = [{"n": 1, "echo": SECRET, "padding": "x" * padding}]
    envelope = await ResultStore(payloads=payloads, mask=mask).store_row_results(rows)
    assert (envelope.reference is not None) == (padding > 0)
    assert SECRET.encode() not in codec.encode_json(envelope)
    assert all(SECRET.encode() not in data for data in store.bytes_by_key.values())
