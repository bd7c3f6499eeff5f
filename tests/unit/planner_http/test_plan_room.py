"""The plan of a registered playbook over HTTP."""

from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK

Api = AsyncTestClient[Litestar]


async def test_a_registered_playbook_has_its_plan(api: Api) -> None:
    await api.post("/api/catalog/register", content=PLAYBOOK, headers={"Content-Type": "text/yaml"})
    answer = await api.get("/api/playbooks/demo/hello/plan")
    assert answer.status_code == 200
    plan = answer.json()
    assert plan["path"] == "demo/hello"
    assert plan["steps"][0]["is_reachable"] is True
    assert (await api.get("/api/playbooks/demo/hello/plan?version=1")).json() == plan
    assert (await api.get("/api/playbooks/demo/hello/plan?version=2")).status_code == 404


async def test_nothing_else_stands_beside_a_plan(api: Api) -> None:
    missing = await api.get("/api/playbooks/demo/hello")
    assert missing.status_code == 404
    assert missing.json()["hint"] == "/api/playbooks/demo/hello/plan is its plan"
    assert (await api.get("/api/playbooks/no/such/plan")).status_code == 404
