"""All services in one process, with authentication on, and people with keys."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
from tests.support.api import replace_services
from tests.support.identities import Caller, make_caller_of, open_client
from tests.support.inprocess import a_system, history
from tests.support.polling import eventually

from noetl_cli.local.system import LocalSystem
from noetl_contracts.events import get_event_type
from noetl_contracts.identity import actors
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_planner.api.app import create_app
from noetl_planner.identity.authenticator import Authenticator

DEFAULT = (TenantId("default"), OrganizationId("default"))


class Shop:
    """All services in this process, with authentication on, and people with keys."""

    def __init__(self, opened: LocalSystem, app: Any) -> None:
        self.opened = opened
        self.app = app

    async def person(self, role: str, name: str, *, path_prefix: str = "") -> Caller:
        return await make_caller_of(
            self.opened.adapters.identities,
            role,
            place=DEFAULT,
            name=name,
            path_prefix=path_prefix,
        )

    async def ask(self, caller: Caller, method: str, path: str, **rest: Any) -> httpx.Response:
        async with open_client(self.app, caller) as client:
            return await client.request(method, path, **rest)

    async def register(self, caller: Caller, *texts: str) -> None:
        for text in texts:
            headers = {"Content-Type": "text/yaml"}
            answer = await self.ask(
                caller, "POST", "/api/catalog/register", content=text, headers=headers
            )
            assert answer.status_code == HTTPStatus.OK, answer.text

    async def run(self, caller: Caller, path: str) -> ExecutionId:
        answer = await self.ask(caller, "POST", "/api/execute", json={"path": path})
        assert answer.status_code == HTTPStatus.ACCEPTED, answer.text
        return ExecutionId(answer.json()["execution_id"])

    async def wait_for_approval(
        self, caller: Caller, execution_id: ExecutionId | None = None
    ) -> str:
        """Wait until somebody is asked; return the address of the decision."""

        async def find_approval() -> str | None:
            listed = (await self.ask(caller, "GET", "/api/approvals")).json()["approvals"]
            found = [item for item in listed if execution_id in (None, item["execution_id"])]
            return found[0]["approval_id"] if found else None

        return f"/api/approvals/{await eventually(find_approval)}"

    async def find_actors(self, execution_id: ExecutionId) -> dict[str, actors.Actor]:
        found = {}
        for envelope in await history(self.opened, execution_id):
            actor = actors.read_actor(envelope.meta)
            if actor is not None:
                found[get_event_type(envelope.event)] = actor
        return found

    async def wait_for_end(self, execution_id: ExecutionId) -> str:
        async def find_end() -> str | None:
            rows = await self.opened.adapters.projections.list_rows("execution", execution_id)
            return rows[0]["status"] if rows and rows[0]["ended_at"] else None

        return str(await eventually(find_end))


@asynccontextmanager
async def open_shop(folder: Path) -> AsyncIterator[Shop]:
    async with a_system(folder) as opened:
        authenticator = Authenticator(opened.adapters.identities, opened.adapters.clock)
        yield Shop(
            opened, create_app(replace_services(opened.services, authenticator=authenticator))
        )
