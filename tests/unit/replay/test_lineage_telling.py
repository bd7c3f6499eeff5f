"""What lineage tells of histories: whole, alike however it is cut, and as the standard wants it."""

from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from msgspec import UNSET
from tests.replay import record
from tests.support import openlineage
from tests.support.builders import History, a_failed_run, a_ref, a_single_step, an_item_loop

from noetl_contracts import codec
from noetl_contracts.commands.data_checks import CheckReport
from noetl_contracts.commands.task_metrics import TaskMetrics
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import step_events
from noetl_contracts.ids import CommandId, RunId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.openlineage import Dataset, StepData
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.status import RunStatus
from noetl_playbook import data_places, step_data
from noetl_playbook.parse import playbook
from noetl_replay import lineage, lineage_checks
from noetl_replay.lineage import LineageEvent, LineageState

NAMES = record.names()
ENDS = {"COMPLETE", "FAIL", "ABORT"}


def begun(history: list[Envelope]) -> LineageState:
    first = history[0]
    return LineageState(
        execution_id=first.execution_id,
        tenant_id=first.tenant_id,
        organization_id=first.organization_id,
    )


def told(history: list[Envelope], plan: lineage.Plan | None = None) -> list[LineageEvent]:
    return lineage.build_lineage_events(begun(history), history, plan or {})


def shown(lineage_events: list[LineageEvent]) -> list[dict[str, Any]]:
    return [
        openlineage.check(codec.encode_json(lineage_event.event))
        for lineage_event in lineage_events
    ]


@pytest.mark.parametrize("name", NAMES)
def test_each_run_of_a_history_is_told_once_and_as_the_standard_wants(name: str) -> None:
    history = record.load(name)
    events = shown(told(history))
    starts = Counter(event["run"]["runId"] for event in events if event["eventType"] == "START")
    ends = Counter(event["run"]["runId"] for event in events if event["eventType"] in ENDS)
    assert set(starts.values()) == {1}
    assert set(ends.values()) <= {1}
    assert ends.keys() <= starts.keys()
    if events[-1]["eventType"] in ENDS and "parent" not in events[-1]["run"]["facets"]:
        assert ends.keys() == starts.keys()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["eventTime"], "2026-01-01T12:00:00"),
        (["eventType"], "BEGIN"),
        (["producer"], "noetl"),
        (["run", "runId"], "7"),
        (["run", "facets", "parent"], {"run": {"runId": str(UUID(int=7))}}),
        (["job", "facets", "sql"], {"query": 1}),
        (["job", "name"], None),
        (["inputs"], [{"namespace": "n"}]),
    ],
)
def test_the_schema_refuses_what_the_standard_does_not_know(place: list[str], value: Any) -> None:
    event = codec.decode_json(codec.encode_json(told(a_single_step().envelopes)[0].event))
    openlineage.SCHEMA.validate(event)
    holder = event
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = value
    assert not openlineage.SCHEMA.is_valid(event)


@pytest.mark.parametrize("name", NAMES)
def test_a_history_is_told_alike_wherever_it_is_cut(name: str) -> None:
    history = record.load(name)
    whole = [codec.encode_json(item) for item in told(history)]
    for cut in {1, len(history) // 3, len(history) // 2, len(history) - 1}:
        kept = begun(history)
        lineage_events = lineage.build_lineage_events(kept, history[:cut], {})
        resumed = codec.decode_as(codec.encode_json(kept), LineageState)
        lineage_events += lineage.build_lineage_events(resumed, history[cut:], {})
        assert [codec.encode_json(lineage_event) for lineage_event in lineage_events] == whole


def test_what_does_not_matter_may_be_left_out() -> None:
    for name in NAMES:
        history = record.load(name)
        few = [item for item in history if lineage.is_lineage_event(item)]
        assert told(few) == told(history)


def test_items_are_not_told_one_by_one() -> None:
    history = an_item_loop().envelopes
    runs = {item.event.run.run_id for item in told(history)}
    steps = sum(isinstance(item.event, step_events.StepEnter) for item in history)
    assert len(runs) == steps + 1


def test_a_failed_run_says_what_it_failed_with() -> None:
    events = shown(told(a_failed_run().envelopes))
    failed = [event for event in events if event["eventType"] == "FAIL"]
    assert [item["run"]["facets"]["errorMessage"]["message"] for item in failed]
    assert failed[-1]["job"]["name"] == "examples/story"
    assert failed[0]["run"]["facets"]["parent"]["run"]["runId"] == failed[-1]["run"]["runId"]


def test_a_result_is_a_dataset_whose_version_is_its_digest() -> None:
    history = History()
    history.start(entry="read")
    reference = a_ref(40, "rows")
    run = RunId("7")
    result = ResultEnvelope(status="ok", reference=reference, context={"columns": ["id", "name"]})
    history.add(
        step_events.StepEnter(step="read", run_id=run, activation=1),
        step_events.CallDone(step="read", run_id=run, command_id=CommandId("9"), result=result),
        step_events.StepEnter(step="use", run_id=RunId("8"), activation=2, came_from="read"),
    )
    plan = {
        "read": StepData(
            kind="postgres",
            reads=(Dataset(namespace="postgres://main", name="people"),),
            statements=("select 1",),
            dialect="postgres",
        ),
        "use": StepData(kind="python", uses=("read", "never")),
    }
    kept = begun(history.envelopes)
    *_, entered = shown(lineage.build_lineage_events(kept, history.envelopes, plan))
    (source,) = entered["inputs"]
    assert source["name"] == "noetl://tenant/acme/org/west/result/examples%2Fstory/read"
    assert source["facets"]["version"]["datasetVersion"] == reference.sha256
    assert source["facets"]["symlinks"]["identifiers"][0]["name"] == reference.uri
    assert [field["name"] for field in source["facets"]["schema"]["fields"]] == ["id", "name"]
    assert kept.open[run].inputs[0].name == "people"


def test_inline_results_have_versions_too() -> None:
    events = shown(told(a_single_step().envelopes))
    outputs = [output for event in events for output in event["outputs"]]
    assert outputs
    assert all(len(output["facets"]["version"]["datasetVersion"]) == 64 for output in outputs)


PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: data, path: demo/data}
keychain: [{name: k, kind: secret, provider: env, map: {v: TOKEN}}]
workflow:
  - step: get
    tool: {kind: http, url: "https://user:pw@api.example.com:8443/v1/items?key=s3cret", method: GET}
    next: {arcs: [{step: move}]}
  - step: move
    tool:
      kind: transfer
      source:
        type: postgres
        auth: main_db
        query: SELECT id FROM items WHERE day = $1
        params: ["{{ keychain.k.v }}"]
      target: {type: postgres, auth: main_db, table: mart.items, mode: append}
    next: {arcs: [{step: sum}]}
  - step: sum
    tool: {kind: duckdb, query: "SELECT {{ get.status }}", inputs: {g: "{{ get }}"}}
"""


def test_a_playbook_tells_its_data_without_what_is_secret() -> None:
    parsed = playbook.parse_playbook(PLAYBOOK)
    found = step_data.list_step_data(parsed.playbook)
    assert found["get"].reads == (
        Dataset(namespace="https://api.example.com:8443", name="v1/items"),
    )
    assert found["move"].writes == (Dataset(namespace="postgres://main_db", name="mart.items"),)
    assert found["move"].statements == ("SELECT id FROM items WHERE day = $1",)
    assert found["move"].dialect is None
    assert (found["sum"].uses, found["sum"].dialect) == (("get",), "duckdb")
    assert "s3cret" not in repr(found)
    assert "keychain" not in repr(found)


DATASETS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: data, path: demo/data}
workflow:
  - step: load
    tool:
      kind: duckdb
      inputs:
        orders: {path: "s3://lake/orders/day=*/", auth: lake, expect: {not_null: [id]}}
        people: {auth: pg, table: public.people}
        rates: {path: "{{ workload.rates }}"}
        asked: {auth: pg, query: SELECT 1}
      query: SELECT * FROM orders
      output: {delta: "s3://lake/joined", auth: lake, expect: {unique: [id, day], predicate: a > 0}}
    next: {arcs: [{step: copy}]}
  - step: copy
    tool:
      kind: transfer
      source: {delta: "s3://lake/joined", auth: lake}
      target: {path: out/}
    next: {arcs: [{step: publish}]}
  - step: publish
    tool:
      kind: spark
      inputs: {c: {path: out/}}
      sql: SELECT * FROM c
      output: {iceberg: {table: sales.daily, catalog: pg, warehouse: "s3://lake/w"}}
"""
ORDERS = Dataset(namespace="s3://lake", name="orders")
JOINED = Dataset(namespace="s3://lake", name="joined")


def test_a_playbook_tells_the_datasets_of_every_tool() -> None:
    steps = step_data.list_step_data(playbook.parse_playbook(DATASETS).playbook)
    people = Dataset(namespace="postgres://pg", name="public.people")
    assert steps["load"].reads == (people, ORDERS)
    assert steps["load"].writes == (JOINED,)
    assert steps["load"].checked == {
        "input 'orders'": ORDERS,
        "input 'people'": people,
        "output": JOINED,
    }
    out = Dataset(namespace="file", name="out")
    assert (steps["copy"].reads, steps["copy"].writes) == ((JOINED,), (out,))
    assert steps["copy"].checked == {"source": JOINED, "target": out}
    assert steps["publish"].reads == (out,)
    assert steps["publish"].writes == (Dataset(namespace="iceberg://pg", name="sales.daily"),)


TWICE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: data, path: demo/data}
workflow:
  - step: load
    tool:
      - first: {kind: duckdb, query: SELECT 1, output: {path: "s3://lake/first", auth: lake}}
      - second:
          kind: duckdb
          inputs:
            a: {path: "s3://lake/orders/", auth: lake, expect: {not_null: [id]}}
            b: {path: "s3://lake/orders/", auth: lake, expect: {unique: [id]}}
          query: SELECT 1
"""


def test_assertions_of_one_dataset_are_told_together_and_those_of_no_other() -> None:
    plan = step_data.list_step_data(playbook.parse_playbook(TWICE).playbook)
    assert plan["load"].checked == {"input 'a'": ORDERS, "input 'b'": ORDERS}
    reports = [
        {"dataset": "input 'a'", "check": "not_null id", "is_met": False, "failed_rows": 1},
        {"dataset": "input 'b'", "check": "unique id", "is_met": True, "failed_rows": 0},
        {"dataset": "output", "check": "row_count", "is_met": True, "measured": 7},
    ]
    assertions = lineage_checks.read_assertions({"checks": reports})
    (dataset,) = lineage_checks.add_assertions([], assertions, plan["load"].checked)
    facets = codec.decode_json(codec.encode_json(dataset.input_facets))
    told_assertions = facets["dataQualityAssertions"]["assertions"]
    assert [(item["name"], item["success"]) for item in told_assertions] == [
        ("not_null id", False),
        ("unique id", True),
    ]


def test_values_of_any_shape_in_a_users_own_checks_are_left_out() -> None:
    nested: list[Any] = []
    for _ in range(2000):
        nested = [nested]
    reports = [
        {"dataset": "a", "check": "row_count", "measured": nested},
        {"dataset": "a", "check": "row_count", "failed_rows": {"a": 1}},
        *(None, 7, {"dataset": 1, "check": "a"}, {"dataset": "a", "check": ["a"]}),
    ]
    first, second = lineage_checks.read_assertions({"checks": reports})["a"]
    assert (first.actual, second.actual) == (UNSET, UNSET)
    assert lineage_checks.read_assertions({"checks": {"a": 1}}) == {}


@pytest.mark.parametrize("last", [[], {}, 7, None])
def test_a_result_that_only_looks_like_tasks_is_told(last: Any) -> None:
    result = ResultEnvelope(status="ok", context={"data": {"tasks": {"t": {}}, "last": last}})
    dataset = lineage.read_result_dataset(result)
    assert dataset is not None
    assert dataset.row_count is None


@pytest.mark.parametrize("address", ["jdbc:postgresql://u:pw@h/db", "u:pw@h/db", "s3:/u:pw@b/x"])
def test_an_address_without_a_server_is_not_told(address: str) -> None:
    assert list(data_places.list_address(address)) == []


def test_checks_of_rows_are_assertions_of_their_datasets() -> None:
    checks = [
        {"dataset": "input 'orders'", "check": "not_null id", "is_met": True, "failed_rows": 0},
        {"dataset": "output", "check": "unique id, day", "is_met": False, "failed_rows": 2},
        {"dataset": "output", "check": "predicate a > 0", "is_met": True, "failed_rows": 0},
        {"dataset": "output", "check": "row_count", "is_met": True, "measured": 7},
        {"dataset": "input 'rates'", "check": "row_count", "is_met": True, "measured": 7},
    ]
    raw = {"rows": [], "checks": checks}
    data = {"last": "t", "tasks": {"t": {"status": "ok", "raw": raw}}}
    history, run = History(), RunId("7")
    history.start(entry="load")
    history.add(
        step_events.StepEnter(step="load", run_id=run, activation=1),
        step_events.CallDone(
            step="load",
            run_id=run,
            command_id=CommandId("9"),
            result=ResultEnvelope(status="ok", context={"data": data}),
        ),
        step_events.StepExit(step="load", run_id=run, status=RunStatus.COMPLETED),
    )
    plan = step_data.list_step_data(playbook.parse_playbook(DATASETS).playbook)
    events = shown(told(history.envelopes, plan))
    start, end = (event for event in events if event["job"]["name"].endswith(".load"))
    assert all("inputFacets" not in dataset for dataset in start["inputs"])
    found = {
        dataset["name"]: dataset["inputFacets"]["dataQualityAssertions"]["assertions"]
        for dataset in end["inputs"]
        if "inputFacets" in dataset
    }
    assert found["orders"] == [
        {
            "assertion": "not_null",
            "success": True,
            "column": "id",
            "name": "not_null id",
            "actual": "0 rows",
        }
    ]
    assert [(one["assertion"], one["success"], one["actual"]) for one in found["joined"]] == [
        ("unique", False, "2 rows"),
        ("predicate", True, "0 rows"),
        ("row_count", True, "7"),
    ]
    assert found["joined"][1]["content"] == "a > 0"
    assert found.keys() == {"orders", "joined"}


def test_a_failed_step_tells_what_its_checks_have_found() -> None:
    history, run = History(), RunId("7")
    history.start(entry="load")
    error = ErrorObject(kind="assertion", message="unique id does not hold in 2 of 9 rows")
    report = CheckReport(dataset="output", check="unique id", is_met=False, failed_rows=2)
    history.add(
        step_events.StepEnter(step="load", run_id=run, activation=1),
        step_events.CallError(step="load", run_id=run, command_id=CommandId("9"), error=error),
        step_events.StepExit(
            step="load",
            run_id=run,
            status=RunStatus.FAILED,
            error=error,
            tasks={"t": TaskMetrics(checks=(report,))},
        ),
    )
    plan = step_data.list_step_data(playbook.parse_playbook(DATASETS).playbook)
    events = shown(told(history.envelopes, plan))
    (end,) = (event for event in events if event["eventType"] == "FAIL")
    assert "unique id" in end["run"]["facets"]["errorMessage"]["message"]
    (checked,) = (dataset for dataset in end["inputs"] if "inputFacets" in dataset)
    assert checked["name"] == "joined"
    (assertion,) = checked["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["name"], assertion["success"], assertion["actual"]) == (
        *("unique id", False),
        "2 rows",
    )
