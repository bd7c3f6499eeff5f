"""Requests that nobody thought of: the API answers as it describes itself, and never breaks."""

import asyncio

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from litestar.testing import TestClient
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.support import api

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.app import create_app

KNOWN = {
    "execution_id": ExecutionId("7"),
    "step": "start",
    "path": "demo/hello",
    "name": "hello",
}
EXAMPLES_SHARE = 10


def served() -> schemathesis.BaseSchema:
    """The API over one playbook and one ended execution, as it describes itself."""
    world = api.ApiWorld()

    async def fill() -> None:
        execution_id = KNOWN["execution_id"]
        await world.broker.ensure_streams()
        await world.append(execution_id, [*api.beginning(), *api.ending()])
        await world.project(execution_id)

    asyncio.run(fill())
    app = create_app(world.services())
    with TestClient(app) as client:
        client.post(
            "/api/catalog/register", content=api.PLAYBOOK, headers={"Content-Type": "text/yaml"}
        ).raise_for_status()
    return schemathesis.openapi.from_asgi("/schema/openapi.json", app)


# A followed stream has no end of its own.
OPERATIONS = {
    operation.label: operation
    for operation in (found.ok() for found in served().get_all_operations())
    if not operation.path.endswith("/stream")
}


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_whatever_is_asked_has_an_answer(label: str) -> None:
    operation: APIOperation = OPERATIONS[label]

    @settings(
        max_examples=max(settings().max_examples // EXAMPLES_SHARE, 10),
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=operation.as_strategy(), is_known=st.booleans())
    def ask(case: schemathesis.Case, *, is_known: bool) -> None:
        if is_known:
            case.path_parameters.update(
                {name: KNOWN[name] for name in case.path_parameters if name in KNOWN}
            )
        # What the description cannot say, such as when an expression of cron is one, is refused.
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    ask()
