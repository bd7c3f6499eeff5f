"""Answers of the API hide sealed values, wherever they stand."""

from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK

SEALED = "sealed:v1:0123abcd:QUJDREVGRw"


async def test_a_sealed_value_is_shown_as_a_mask(api: AsyncTestClient[Litestar]) -> None:
    text = PLAYBOOK.replace("who: world", f"who: '{SEALED}'")
    text = text.replace("deep: {}", f"deep: [{{a: 'x {SEALED} y'}}]")
    answer = await api.post("/api/catalog/register", content=text)
    assert answer.status_code == 200, answer.text
    shown = await api.get("/api/catalog/demo/hello")
    assert "QUJD" not in shown.text
    workload = shown.json()["model"]["workload"]
    assert (workload["who"], workload["deep"]) == ("***", [{"a": "x *** y"}])
    assert shown.headers["content-type"] == "application/json"
    assert int(shown.headers["content-length"]) == len(shown.content)
