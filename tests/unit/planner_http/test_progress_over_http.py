"""Who follows an execution over HTTP may ask for the progress of its tasks."""

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld, beginning, ending
from tests.support.storage import an_execution

Api = AsyncTestClient[Litestar]


@pytest.mark.parametrize("wish", ["", "?progress=true", "?progress=false"])
async def test_a_stream_has_all_events_with_the_wish_and_without(
    api: Api, world: ApiWorld, wish: str
) -> None:
    execution_id = an_execution()
    await world.append(execution_id, [*beginning(), *ending()])
    await world.project(execution_id)
    answer = await api.get(f"/api/executions/{execution_id}/stream{wish}")
    assert answer.status_code == 200
    types = [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]
    assert types[0] == "playbook.initialized"
    assert types[-1] == "end"


async def test_a_wish_that_is_neither_yes_nor_no_is_refused(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning())
    await world.project(execution_id)
    answer = await api.get(f"/api/executions/{execution_id}/stream?progress=perhaps")
    assert answer.status_code == 400
    assert "progress" in answer.text
