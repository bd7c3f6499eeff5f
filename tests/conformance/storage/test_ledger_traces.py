from tests.support.lineage import history, stored
from tests.support.storage import Stores, a_fence, a_stream, an_append, an_execution

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import LineageLink


async def traced(stores: Stores, step: str, links_max: int = 50) -> list[LineageLink]:
    execution: ExecutionId = an_execution()
    others = an_execution()
    fence = await a_fence(stores)
    await stores.ledger.append(
        an_append(fence, a_stream(execution, history()), a_stream(others, history()))
    )
    return await stores.ledger_reader.trace_runs(execution, step, links_max=links_max)


async def test_a_chain_goes_back_to_the_runs_that_started_the_next(stores: Stores) -> None:
    links = await traced(stores, "loop")

    assert [(link.step, link.run_id, link.entered_version) for link in links] == [
        ("loop", "5", 11),
        ("report", "4", 8),
        ("clean", "2", 4),
        ("fetch", "1", 1),
    ]
    assert [link.is_error for link in links] == [False, True, False, False]
    assert [link.result for link in links[1:]] == [None, stored("clean one"), stored("fetched")]
    assert len({link.ref_id for link in links}) == 4


async def test_a_run_that_has_no_result_yet_is_in_the_chain(stores: Stores) -> None:
    links = await traced(stores, "handle")
    assert [(link.step, link.run_id) for link in links] == [
        ("handle", "6"),
        ("clean", "3"),
        ("clean", "2"),
        ("fetch", "1"),
    ]
    assert [link.ref_id is None for link in links] == [True, True, False, False]


async def test_a_chain_is_cut_at_its_limit(stores: Stores) -> None:
    assert [link.step for link in await traced(stores, "loop", 2)] == ["loop", "report"]


async def test_a_step_that_was_never_entered_has_no_chain(stores: Stores) -> None:
    assert await traced(stores, "nowhere") == []
