"""Lineage beside the projection: told once, delivered at least once, the same however it went."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from tests.support import openlineage
from tests.support.builders import ORGANIZATION, TENANT, History, a_failed_run, an_item_loop
from tests.support.bus import memory_bus
from tests.support.lineage_endpoint import MemoryLineageEndpoint
from tests.support.lineage_rows import list_lineage_rows
from tests.support.projecting import SHARD_COUNT, ProjectorHarness
from tests.support.storage import memory_stores

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec
from noetl_contracts.events import execution_events
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import CatalogEntry
from noetl_messaging.openlineage.endpoint import open_lineage_endpoint
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import LineageEndpoint, LineageRefused
from noetl_playbook.parse import playbook
from noetl_projector.domain.policy import LineagePolicy
from noetl_projector.projection.lineage_relay import LineageRelay, LineageStores

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: story, path: examples/story}
workflow:
  - step: fetch
    tool: {kind: duckdb, query: SELECT 41 + 1}
"""


@pytest.fixture
async def harness() -> AsyncIterator[ProjectorHarness]:
    async with memory_bus() as bus:
        await bus.streams.ensure_streams()
        yield ProjectorHarness(memory_stores(), bus)


def lineages(harness: ProjectorHarness, endpoint: LineageEndpoint, **policy: Any) -> LineageRelay:
    chosen = {"is_kept": True, "execution_shard_count": SHARD_COUNT, "page_versions": 7, **policy}
    return LineageRelay(
        stores=LineageStores(
            histories=harness.stores.steps,
            rows=harness.stores.lineage,
            catalog=harness.stores.catalog,
            endpoint=endpoint,
        ),
        clock=SystemClock(),
        policy=LineagePolicy(**chosen),
    )


async def run_dry(telling: LineageRelay) -> None:
    while await telling.record_lineage():
        pass
    while await telling.deliver_lineage():
        pass


async def bodies(harness: ProjectorHarness, execution_id: ExecutionId) -> list[str]:
    return [
        lineage_row.body
        for lineage_row in await list_lineage_rows(harness.stores.lineage, execution_id)
    ]


def other(history: History) -> History:
    twin = History(ExecutionId(str(int(history.execution_id) + (1 << 22))))
    twin.add(*(envelope.event for envelope in history.envelopes))
    return twin


async def test_what_is_delivered_is_what_the_standard_wants_in_order(
    harness: ProjectorHarness,
) -> None:
    item, two = a_failed_run(), other(an_item_loop())
    for history in (item, two):
        await harness.append(history)
    endpoint = MemoryLineageEndpoint()
    await run_dry(lineages(harness, endpoint))
    kept = [await bodies(harness, history.execution_id) for history in (item, two)]
    assert sorted(endpoint.bodies) == sorted(kept[0] + kept[1])
    for rows in kept:
        assert [body for body in endpoint.bodies if body in rows] == rows
        assert openlineage.check(rows[0])["eventType"] == "START"


async def test_statements_come_from_the_playbook_of_the_run(harness: ProjectorHarness) -> None:
    history = History()
    history.start()
    history.enter("fetch")
    started = history.envelopes[0].event
    assert isinstance(started, execution_events.PlaybookInitialized)
    await harness.stores.catalog.register_playbook(
        CatalogEntry(
            catalog_id=started.catalog_id,
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
            path="examples/story",
            version=0,
            digest="d",
            source=PLAYBOOK,
            model=codec.to_builtins(playbook.parse_playbook(PLAYBOOK).playbook),
            diagnostics=[],
        )
    )
    await harness.append(history)
    await run_dry(lineages(harness, MemoryLineageEndpoint()))
    _, entered = await bodies(harness, history.execution_id)
    assert codec.decode_json(entered)["job"]["facets"]["sql"] == {
        "_producer": "https://noetl.io",
        "_schemaURL": "https://openlineage.io/spec/facets/1-1-0/SQLJobFacet.json"
        "#/$defs/SQLJobFacet",
        "query": "SELECT 41 + 1",
        "dialect": "duckdb",
    }


async def test_told_in_parts_or_again_the_bytes_are_the_same(harness: ProjectorHarness) -> None:
    history = an_item_loop()
    half = len(history.envelopes) // 2
    telling = lineages(harness, MemoryLineageEndpoint(), page_versions=3, pages_max=1)
    await harness.append(history, until=half)
    await telling.record_lineage()
    await harness.append(history, after=half)
    # Another process, which knows nothing of what the first one held.
    await run_dry(lineages(harness, MemoryLineageEndpoint(), page_versions=2))
    first = await bodies(harness, history.execution_id)
    await harness.stores.lineage.forget_lineage(history.execution_id)
    endpoint = MemoryLineageEndpoint()
    await run_dry(lineages(harness, endpoint))
    assert await bodies(harness, history.execution_id) == first
    assert endpoint.bodies == []


async def test_a_receiver_that_is_away_gets_everything_later(harness: ProjectorHarness) -> None:
    history = a_failed_run()
    await harness.append(history)
    endpoint = MemoryLineageEndpoint()
    endpoint.absent = 2
    telling = lineages(harness, endpoint, retry_min_s=0.01, retry_max_s=0.01)
    await telling.record_lineage()
    expected = await bodies(harness, history.execution_id)
    while endpoint.bodies != expected:
        await telling.deliver_lineage()


async def test_without_a_receiver_nothing_is_read_or_kept(harness: ProjectorHarness) -> None:
    history = a_failed_run()
    await harness.append(history)
    telling = lineages(harness, MemoryLineageEndpoint(), is_kept=False)
    assert (await telling.record_lineage(), await telling.deliver_lineage()) == (0, 0)
    assert await bodies(harness, history.execution_id) == []


class RefusingLineages:
    """Takes all but the first of what it is sent."""

    def __init__(self) -> None:
        self.taken = 0

    async def deliver_event(self, body: str) -> None:
        self.taken += 1
        if self.taken == 1:
            raise LineageRefused("422")


async def test_one_refused_event_does_not_hold_back_the_others(harness: ProjectorHarness) -> None:
    history = a_failed_run()
    await harness.append(history)
    endpoint = RefusingLineages()
    await run_dry(lineages(harness, endpoint))
    assert endpoint.taken == len(await bodies(harness, history.execution_id))


@pytest.mark.parametrize(
    ("status", "failure"),
    [(201, None), (422, LineageRefused), (503, MessagingUnavailable), (401, MessagingUnavailable)],
)
async def test_an_endpoint_is_told_over_http(status: int, failure: type[Exception] | None) -> None:
    received: list[tuple[str, str | None, str]] = []

    async def take(request: web.Request) -> web.Response:
        key = request.headers.get("Authorization")
        received.append((request.path, key, await request.text()))
        return web.Response(status=status, text="so it is")

    app = web.Application()
    app.router.add_post("/api/v1/lineage", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        async with open_lineage_endpoint(url, api_key="k") as endpoint:
            if failure is None:
                await endpoint.deliver_event('{"a": 1}')
            else:
                with pytest.raises(failure, match=f"{status}: so it is"):
                    await endpoint.deliver_event('{"a": 1}')
    finally:
        await runner.cleanup()
    assert received == [("/api/v1/lineage", "Bearer k", '{"a": 1}')]
    async with open_lineage_endpoint(url, api_key="") as endpoint:
        with pytest.raises(MessagingUnavailable, match="does not answer"):
            await endpoint.deliver_event("{}")
