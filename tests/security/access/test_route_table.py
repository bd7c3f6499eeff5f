"""Every route, for every role, of the own and of another organization, against the table of rules.

The table of the documentation is made from the same rules; what it says is shown here.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from litestar.routes import HTTPRoute
from tests.support.api import PLAYBOOK, ApiWorld, beginning
from tests.support.identities import (
    NOBODY,
    OTHER,
    OWNER,
    Caller,
    make_caller,
    make_guarded_app,
    open_client,
)

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.app import create_app
from noetl_planner.identity.permissions import PERMISSIONS_BY_ROLE, Permission, Role
from noetl_planner.identity.route_rules import RULES, AccessKind, find_rule

EXECUTION = ExecutionId("72057594037927937")
VALUES = {
    "execution_id": EXECUTION,
    "path": "demo/hello/plan",
    "step": "start",
    "name": "something",
    "token": "0" * 64,
    "correlation_key": "order-7",
    "approval_id": "9",
    "sequence": "1",
    "command_id": "9",
    "stage_id": "9",
    "frame_id": "9",
    "object_type": "order",
    "key": "7",
    "binding_id": "999",
    "key_prefix": "noetl_unknown",
    "tenant": "nowhere",
}
REFUSALS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
ROLES = [str(role) for role in Role]


def list_routes() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Every method of every route, as the framework has them, with its query parameters."""
    for route in create_app(ApiWorld().services()).routes:
        assert isinstance(route, HTTPRoute), "only HTTP is spoken here"
        for method in sorted(route.methods - {"OPTIONS"}):
            _, model = route.route_handler_map[method]
            names = frozenset(item.field_alias for item in model.expected_query_params)
            yield method, route.path_format, names


QUERY_NAMES = {(method, path): names for method, path, names in list_routes()}
ROUTES = sorted(QUERY_NAMES)


@dataclass(frozen=True)
class Guarded:
    """One API for all tests of this file, and who calls it."""

    app: Any
    callers: dict[str, Caller]


@pytest.fixture(scope="module")
def guarded() -> Guarded:
    """An execution of the own organization and its playbook, behind the gate."""
    return asyncio.run(_make_guarded())


async def _make_guarded() -> Guarded:
    world = ApiWorld()
    await world.append(EXECUTION, beginning())
    await world.project(EXECUTION)
    app = make_guarded_app(world)
    async with open_client(app, OWNER) as client:
        answer = await client.post(
            "/api/catalog/register", content=PLAYBOOK, headers={"Content-Type": "text/yaml"}
        )
        assert answer.status_code == HTTPStatus.OK
    callers = {role: await make_caller(world, role) for role in ROLES}
    callers["foreign"] = await make_caller(world, "admin", place=OTHER)
    # Live streams end at once: the process is about to stop.
    world.stop.set()
    return Guarded(app, callers | {"nobody": NOBODY})


async def ask(
    guarded: Guarded, caller: str, method: str, path: str, execution_id: str = EXECUTION
) -> httpx.Response:
    values = {**VALUES, "execution_id": execution_id}
    if path == "/schema/{path}":
        values["path"] = "openapi.json"
    async with open_client(guarded.app, guarded.callers[caller]) as client:
        if method in {"GET", "DELETE"}:
            query = {"tenant_id": "acme", "organization_id": "west", "execution_id": execution_id}
            params = {name: query[name] for name in query.keys() & QUERY_NAMES[method, path]}
            return await client.request(method, path.format(**values), params=params)
        return await client.request(method, path.format(**values), json={})


def test_every_route_has_a_rule_and_every_rule_a_route() -> None:
    assert sorted(RULES) == ROUTES


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_without_a_token_only_public_routes_answer(
    guarded: Guarded, method: str, path: str
) -> None:
    answer = await ask(guarded, "nobody", method, path)
    rule = find_rule(method, path)
    assert rule is not None
    if rule.access_kind is not AccessKind.PUBLIC:
        assert answer.status_code == HTTPStatus.UNAUTHORIZED
        assert answer.json()["code"] == "not_signed_in"
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    else:
        assert answer.status_code != HTTPStatus.FORBIDDEN


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_a_role_opens_what_its_permissions_say(
    guarded: Guarded, method: str, path: str, role: str
) -> None:
    answer = await ask(guarded, role, method, path)
    rule = find_rule(method, path)
    assert rule is not None
    is_allowed = rule.permission is None or rule.permission in PERMISSIONS_BY_ROLE[Role(role)]
    if is_allowed:
        assert answer.status_code not in REFUSALS, answer.text
    else:
        assert answer.status_code == HTTPStatus.FORBIDDEN, answer.text
        assert answer.json()["code"] == "forbidden"


@pytest.mark.parametrize(
    ("method", "path"), [route for route in ROUTES if "{execution_id}" in route[1]]
)
async def test_an_execution_of_another_tenant_is_not_there(
    guarded: Guarded, method: str, path: str
) -> None:
    answer = await ask(guarded, "foreign", method, path)
    unknown = await ask(guarded, "foreign", method, path, execution_id=str(int(EXECUTION) + 1))
    if answer.status_code != HTTPStatus.BAD_REQUEST:
        assert answer.status_code == HTTPStatus.NOT_FOUND, answer.text
    # Nor is it told by another answer than that for what nobody has.
    assert answer.status_code == unknown.status_code
    assert answer.json()["code"] == unknown.json()["code"]


@pytest.mark.parametrize("role", ROLES)
def test_no_role_but_admin_writes_credentials(role: str) -> None:
    may_write = Permission.WRITE_CREDENTIALS in PERMISSIONS_BY_ROLE[Role(role)]
    assert may_write == (role == "admin")


def test_a_route_without_a_rule_is_refused() -> None:
    assert find_rule("GET", "/api/new") is None
