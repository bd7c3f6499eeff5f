"""Somebody with the API of services in the test's own process."""

from typing import Any

from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.polling import eventually

PATIENCE_S = 60.0
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: controlled, path: t/controlled}\n"
Api = AsyncTestClient[Litestar]


class Person:
    """Somebody with the API at hand."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def begin(self, text: str, **body: Any) -> str:
        kept = await self.api.post(
            "/api/catalog/register", content=HEAD + text, headers={"Content-Type": "text/yaml"}
        )
        assert kept.status_code == 200, kept.text
        answer = await self.api.post("/api/execute", json={"path": "t/controlled", **body})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["execution_id"])

    async def post(self, execution_id: str, verb: str, **body: Any) -> Any:
        answer = await self.api.post(f"/api/executions/{execution_id}/{verb}", json=body)
        assert answer.status_code == 202, answer.text
        return answer.json()

    async def status(self, execution_id: str) -> Any:
        return (await self.api.get(f"/api/executions/{execution_id}/status")).json()

    async def until(self, execution_id: str, status: str) -> Any:
        async def is_there() -> Any:
            found = await self.status(execution_id)
            return found if found["status"] == status else None

        return await eventually(is_there, timeout_s=PATIENCE_S)

    async def events(self, execution_id: str) -> list[Any]:
        answer = await self.api.get(f"/api/executions/{execution_id}/events?limit=1000")
        found: list[Any] = answer.json()["events"]
        return found

    async def types(self, execution_id: str) -> list[str]:
        return [event["event_type"] for event in await self.events(execution_id)]
