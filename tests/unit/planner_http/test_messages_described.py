"""A message that comes twice is answered as the description says."""

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient


@pytest.mark.parametrize(
    ("described", "address", "body"),
    [
        ("/api/signals/{correlation_key}", "/api/signals/order-1", {"paid": True}),
        ("/api/callbacks/{token}", None, {}),
        ("/api/approvals/{approval_id}", None, {}),
    ],
)
async def test_the_answer_to_a_repetition_is_described(
    api: AsyncTestClient[Litestar], described: str, address: str | None, body: dict[str, bool]
) -> None:
    paths = (await api.get("/schema/openapi.json")).json()["paths"]
    assert {"200", "202"} <= paths[described]["post"]["responses"].keys()
    if address is not None:
        # The others need a wait, or a token, that names them.
        answers = [await api.post(address, json=body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [202, 200]
        assert [answer.json()["repeated"] for answer in answers] == [False, True]


@pytest.mark.parametrize("approval", ["foo", "77"])
async def test_what_nobody_asks_for_names_the_list_of_approvals(
    api: AsyncTestClient[Litestar], approval: str
) -> None:
    refused = await api.post(f"/api/approvals/{approval}", json={"decision": "approve"})
    assert refused.status_code == 404
    assert "approval" in refused.json()["detail"]
    assert refused.json()["hint"] == "noetl approvals lists what is asked for"
