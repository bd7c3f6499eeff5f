"""The chain that led to a result, over HTTP."""

from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld, beginning
from tests.support.lineage import history, stored, stored_history
from tests.support.storage import an_execution

Api = AsyncTestClient[Litestar]


async def test_a_trace_links_each_result_to_the_one_before(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning())
    await world.project(execution_id)
    await world.append(execution_id, history())

    answer = await api.get(f"/api/executions/{execution_id}/trace/loop")

    assert answer.status_code == 200, answer.text
    links = answer.json()["links"]
    assert [(link["step"], link["status"]) for link in links] == [
        ("loop", "ok"),
        ("report", "error"),
        ("clean", "ok"),
        ("fetch", "ok"),
    ]
    assert [link["parent_ref_id"] for link in links[:-1]] == [link["ref_id"] for link in links[1:]]
    assert links[-1]["parent_ref_id"] is None
    reference = stored("clean one").reference
    assert reference is not None
    assert (links[2]["uri"], links[2]["row_count"]) == (reference.uri, 3)
    assert links[2]["ref"] == f"noetl://execution/{execution_id}/result/clean/2"
    short = (await api.get(f"/api/executions/{execution_id}/trace/loop?limit=2")).json()
    assert (len(short["links"]), short["has_more"]) == (2, True)
    # The last link of a page still names its parent.
    assert short["links"][1]["parent_ref_id"] == links[2]["ref_id"]


async def test_what_has_no_trace_is_a_404_that_helps(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning())
    await world.project(execution_id)
    unknown = await api.get(f"/api/executions/{execution_id}/trace/no/such")
    assert unknown.status_code == 404
    assert "'no/such'" in unknown.json()["detail"]
    assert (await api.get("/api/executions/12345/trace/a")).status_code == 404


async def test_a_trace_outlives_the_history(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning())
    await world.append(execution_id, stored_history())
    await world.project(execution_id)
    address = f"/api/executions/{execution_id}/trace/last"
    whole = (await api.get(address)).json()
    world.forget_history(execution_id)

    left = (await api.get(address)).json()

    assert (whole["source"], left["source"]) == ("ledger", "references")
    assert [link["step"] for link in left["links"]] == ["last", "clean", "fetch"]
    by_ref = {link["ref_id"]: link for link in whole["links"]}
    for link in left["links"]:
        same = by_ref[link["ref_id"]]
        for name in ("run_id", "status", "version", "ref", "uri", "sha256", "bytes", "row_count"):
            assert link[name] == same[name], name
    # Runs without a stored result are left out, and the chain hops over them.
    assert left["links"][0]["parent_ref_id"] == left["links"][1]["ref_id"]
    assert left["links"][-1]["parent_ref_id"] is None
    short = (await api.get(f"{address}?limit=2")).json()
    assert (len(short["links"]), short["has_more"]) == (2, True)


async def test_a_trace_needs_no_stored_results(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning())
    await world.project(execution_id)
    await world.append(execution_id, stored_history())
    assert await world.projections.trace_results(execution_id, "last", links_max=9) == []
    found = (await api.get(f"/api/executions/{execution_id}/trace/last")).json()
    assert (found["source"], len(found["links"])) == ("ledger", 5)
