"""Requests that nobody thought of, under each role: what a role may not do, no request does."""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from litestar.testing import TestClient
from schemathesis.schemas import APIOperation
from tests.support.api import PLAYBOOK, ApiWorld, beginning, ending
from tests.support.identities import NOBODY, OWNER, Caller, make_caller, make_guarded_app

from noetl_contracts.ids import ExecutionId
from noetl_planner.identity.permissions import PERMISSIONS_BY_ROLE, Role
from noetl_planner.identity.route_rules import AccessKind, find_rule

EXECUTION = ExecutionId("7")
KNOWN = {"execution_id": EXECUTION, "step": "start", "path": "demo/hello", "name": "hello"}
EXAMPLES = 120
ROLES = [str(role) for role in Role]


@dataclass(frozen=True)
class Described:
    """The API as its owner is shown it, and who else calls it."""

    operations: list[APIOperation]
    callers: dict[str, Caller]


@pytest.fixture(scope="module")
def described() -> Described:
    world = ApiWorld()

    async def fill() -> dict[str, Caller]:
        await world.broker.ensure_streams()
        await world.append(EXECUTION, [*beginning(), *ending()])
        await world.project(EXECUTION)
        return {role: await make_caller(world, role) for role in ROLES}

    callers = asyncio.run(fill())
    app = make_guarded_app(world)
    headers = OWNER.headers()
    with TestClient(app) as client:
        client.post(
            "/api/catalog/register",
            content=PLAYBOOK,
            headers={"Content-Type": "text/yaml", **headers},
        ).raise_for_status()
    schema = schemathesis.openapi.from_asgi("/schema/openapi.json", app, headers=headers)
    operations = [
        operation
        for operation in (found.ok() for found in schema.get_all_operations())
        # A followed stream has no end of its own.
        if not operation.path.endswith("/stream")
    ]
    assert len(operations) > 80
    return Described(operations, {**callers, "nobody": NOBODY})


@pytest.mark.parametrize("role", [*ROLES, "nobody"])
def test_no_request_does_what_a_role_may_not(described: Described, role: str) -> None:
    allowed = PERMISSIONS_BY_ROLE[Role(role)] if role in ROLES else frozenset()
    headers = described.callers[role].headers()

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(data=st.data())
    def ask(data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from(described.operations))
        case = data.draw(operation.as_strategy())
        case.path_parameters.update(
            {name: KNOWN[name] for name in case.path_parameters if name in KNOWN}
        )
        # What was generated for the header must not stand in for the caller.
        case.headers.pop("Authorization", None)
        answer = case.call(headers=headers)
        rule = find_rule(operation.method.upper(), operation.path)
        assert rule is not None
        assert answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR or (
            answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        )
        if rule.access_kind is AccessKind.PERMISSION and rule.permission not in allowed:
            # Either nobody is proved, or the role does not allow it; or there is no such route.
            assert answer.status_code in {401, 403, 404, 405, 421}, answer.text
            assert answer.status_code != HTTPStatus.NOT_FOUND or "no route" in answer.text.lower()

    ask()
