"""Result views and envelopes: which name finds what."""

from typing import Any

import pytest

from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_playbook.templates.expressions import TemplateError, compile_condition, compile_value
from noetl_playbook.templates.scope import (
    ScopeParts,
    TemplateScope,
    build_item_names,
    last_name_key,
)
from noetl_playbook.views import error_view, result_envelope
from noetl_playbook.views.output_view import OutputView
from noetl_playbook.views.payload_handle import PayloadHandle, PayloadNeeded
from noetl_playbook.views.result_view import (
    ResultView,
    ViewNamespace,
    view_loop,
    view_pipeline,
    view_task,
)
from noetl_playbook.views.results import LoopResult, PipelineResult, StoredResult, TaskResult

BODY = {"paging": {"next": 2}, "items": [1, 2], "url": "from the body"}
HTTP = {"status_code": 200, "headers": {"x": "y"}, "url": "http://h", "elapsed": 0.1, "body": BODY}
SQL = {
    "rows": [{"n": 1}, {"n": 2}],
    "row_count": 2,
    "columns": ["n"],
    "statement_count": 2,
    "status": "SELECT 2",
    "commands": [
        {"rows": [], "row_count": 0, "columns": [], "status": "CREATE TABLE", "message": ""},
        {"rows": [{"n": 1}, {"n": 2}], "row_count": 2, "columns": ["n"], "status": "SELECT 2"},
    ],
}


def value(source: str, **names: Any) -> Any:
    return compile_value("{{ " + source + " }}").render(names)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("s.paging.next", 2),
        ("s.data.paging.next", 2),
        ("s.body.paging.next", 2),
        ("s.url", "http://h"),
        ("s.status", 200),
        ("s.status_code", 200),
        ("s.items", [1, 2]),
        ("s.error is defined", False),
        ("s._ref is defined", False),
        ("s.context.paging.next", 2),
    ],
)
def test_an_http_result_carries_its_body(source: str, expected: Any) -> None:
    assert value(source, s=view_task(TaskResult(kind="http", raw=HTTP))) == expected


@pytest.mark.parametrize(
    ("raw", "source", "expected"),
    [
        ({"value": {"user": "ann", "key": "inner"}, "key": "k"}, "s.user ~ s.key", "annk"),
        ({"value": {"user": "ann"}}, "s.value.user", "ann"),
        ({"data": {"id": 7}, "seq": 1}, "s.id + s.seq", 8),
        ({"value": "text"}, "s.user is defined", False),
    ],
)
def test_a_nats_result_carries_its_value(raw: Any, source: str, expected: Any) -> None:
    assert value(source, s=view_task(TaskResult(kind="nats", raw=raw))) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("s.rows[0].n", 1),
        ("s[1].n", 2),
        ("s.data[0].n", 1),
        ("s.data | length", 2),
        ("s | length", 2),
        ("s | map(attribute='n') | list", [1, 2]),
        ("s.result[0].n", 1),
        ("s.row_count", 2),
        ("s.command_0.status", "CREATE TABLE"),
        ("s.command_1.rows[1].n", 2),
        ("s.statement_1.row_count", 2),
        ("s.command_2 is defined", False),
        ("s.commands | length", 2),
        ("s.status", "SELECT 2"),
        ("'x' if s else 'y'", "x"),
    ],
)
def test_a_sql_result_indexes_and_iterates_as_rows(source: str, expected: Any) -> None:
    assert value(source, s=view_task(TaskResult(kind="postgres", raw=SQL))) == expected


@pytest.mark.parametrize(
    ("raw", "source", "expected"),
    [
        ({"data": 1}, "s.data", 1),
        ({"a": 1}, "s.data.a", 1),
        ({"a": 1}, "s", {"a": 1}),
        (5, "s + 1", 6),
        (5, "s.data", 5),
        (None, "s.data", None),
        ([1, {"k": 2}], "s[1].k", 2),
        ([1, 2], "s.result | sum", 3),
        ("text", "s | upper", "TEXT"),
        (False, "not s", True),
        ({"columns": ["a"], "rows": [[1], [2]]}, "s[1][0] + s.row_count", 4),
    ],
)
def test_a_python_value_is_the_view_itself(raw: Any, source: str, expected: Any) -> None:
    assert value(source, s=view_task(TaskResult(kind="python", raw=raw))) == expected


PIPELINE = PipelineResult(
    tasks={
        "get": TaskResult(kind="http", raw=HTTP, names={"all_items": [1, 2, 3]}),
        "parse": TaskResult(kind="python", raw={"count": 2, "url": "parsed"}),
        "again": TaskResult(kind="noop", raw={}),
    },
    last="parse",
)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("s.results.parse.count", 2),
        ("s.parse.count", 2),
        ("s.count", 2),
        ("s.url", "parsed"),
        ("s.all_items | length", 3),
        ("s.get.paging.next", 2),
        ("s.elapsed", 0.1),
        ("s.paging.next", 2),
        ("s.results.get.status_code", 200),
        ("s.status == 'completed'", True),
    ],
)
def test_a_pipeline_result_is_reachable_in_three_ways(source: str, expected: Any) -> None:
    assert value(source, s=view_pipeline(PIPELINE)) == expected


def test_the_plain_form_is_finite_and_holds_every_name() -> None:
    plain = value("s", s=view_pipeline(PIPELINE))
    assert plain["count"] == 2
    assert plain["url"] == "parsed"
    assert plain["results"]["get"]["data"] == BODY
    assert plain["get"]["body"] == BODY
    assert plain["all_items"] == [1, 2, 3]
    sql = value("s", s=view_task(TaskResult(kind="postgres", raw=SQL)))
    assert sql["command_0"]["status"] == "CREATE TABLE"
    assert sql["rows"] == SQL["rows"]


def test_the_plain_form_of_one_task_is_what_it_returned() -> None:
    """Handed from step to step, it stays as long as it is."""
    plain: Any = {"count": 5}
    for task in ("parse", "check", "pass_on"):
        view = view_pipeline(
            PipelineResult(tasks={task: TaskResult(kind="python", raw=plain)}, last=task)
        )
        assert value(f"[s.{task}.count, s.results.{task}.count]", s=view) == [5, 5]
        plain = value("s", s=view)
    assert plain == {"count": 5}
    assert value("s | tojson", s=view) == '{"count":5}'


def test_a_failed_task_that_the_pipeline_passed_leaves_a_failure_record() -> None:
    failed = TaskResult(kind="http", raw={"status_code": 404}, error={"kind": "not_found"})
    view = view_pipeline(PipelineResult(tasks={"get": failed}))
    assert value("s.status", s=view) == "error"
    assert value("s.error.kind", s=view) == "not_found"
    assert value("s", s=view)["error"] == {"kind": "not_found", "retryable": False}


def test_the_result_of_a_failed_pipeline_is_the_record_of_what_failed() -> None:
    good = TaskResult(kind="noop", raw={"n": 1})
    bad = TaskResult(kind="http", raw={"status_code": 422}, error={"kind": "client_error"})
    error = {"kind": "client_error", "task": "bad", "status": 422}
    pipeline_result = PipelineResult(tasks={"good": good, "bad": bad}, last="good")
    view = view_pipeline(pipeline_result, error=error)
    assert value("[s.status, s.error.task, s.status_code]", s=view) == ["error", "bad", 422]
    assert value("[s.n, s.good.n, s.results.good.n]", s=view) == [1, 1, 1]
    assert value("s.http.status", s=OutputView(view, error=error)) == 422
    assert (
        view_pipeline(PipelineResult(), error=error).find_member("error")["kind"] == "client_error"
    )


@pytest.mark.parametrize("raw", [5, "words", None, False, [1, 2]])
def test_a_carried_value_that_is_no_mapping_is_found_bare_and_as_data(raw: Any) -> None:
    tasks = {
        "first": TaskResult(kind="noop", raw={"n": 1}),
        "t": TaskResult(kind="python", raw=raw),
    }
    envelope = ResultEnvelope(
        status="ok",
        context=result_envelope.build_inline_context(PipelineResult(tasks=tasks, last="t")),
    )
    view = result_envelope.view_result(
        envelope, execution_id="1", step="s", run="r", find=result_envelope.make_payload_finder({})
    )
    assert value("[s, s.data, s.result, s.first.n]", s=view)[1:] == [raw, raw, 1]
    assert value("s == x", s=view, x=raw) is True


def test_an_error_always_says_whether_it_is_retryable_and_its_status_by_three_names() -> None:
    shown = error_view.show_error(ErrorObject(kind="not_found", message="m", status=404))
    assert shown == {
        "kind": "not_found",
        "message": "m",
        "retryable": False,
        **dict.fromkeys(("status", "status_code", "http_status"), 404),
    }
    assert error_view.show_error({"kind": "timeout", "retryable": True, "code": None}) == {
        "kind": "timeout",
        "retryable": True,
    }


def test_the_envelope_of_a_stored_result_knows_its_kind_and_its_reference() -> None:
    stored = StoredResult(
        reference=PayloadRef(
            uri="file:///x", sha256="0" * 64, payload_bytes=1, media_type="application/json"
        ),
        locator="noetl://execution/1/result/s/r",
    )
    view = view_pipeline(PipelineResult(tasks={"t": TaskResult(kind="http", raw=HTTP)}, last="t"))
    envelope = OutputView(PayloadHandle(stored, load=lambda _: view))
    assert value("o.http.status", o=envelope) == 200
    assert value("o.ref.ref", o=envelope) == "noetl://execution/1/result/s/r"
    with pytest.raises(PayloadNeeded):
        value("o.http.status", o=OutputView(PayloadHandle(stored)))


def test_a_loop_result_gives_its_results_as_data() -> None:
    view = view_loop(LoopResult(results=[{"a": 1}], stats={"total": 1}, fanin={"status": "x"}))
    assert value("s.data[0].a", s=view) == 1
    assert value("s.stats.total", s=view) == 1
    assert value("s.fanin.status", s=view) == "x"


def test_the_words_for_an_outcome_are_equal() -> None:
    output = OutputView(ResultView({"n": 3}))
    for word in ("ok", "success", "Completed", "done"):
        assert compile_condition(f"output.status == '{word}'").is_true({"output": output})
        assert compile_condition(f"output.status in ['x', '{word}']").is_true({"output": output})
    assert compile_condition("output.status != 'error'").is_true({"output": output})
    assert value("output.status", output=output) == "ok"
    assert type(value("output.status", output=output)) is str
    failed = OutputView(error={"kind": "timeout"})
    assert compile_condition("output.status == 'FAILED'").is_true({"output": failed})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("output.data.paging.next", 2),
        ("output.data.data.paging.next", 2),
        ("output.data.body.paging.next", 2),
        ("output.response.status_code", 200),
        ("output.result.url", "http://h"),
        ("output.http.status", 200),
        ("output.error is defined", False),
        ("output.paging.next", 2),
        ("output.meta.attempt", 2),
    ],
)
def test_the_envelope_reaches_through_to_its_data(source: str, expected: Any) -> None:
    data = ResultView(HTTP, kind="http")
    assert value(source, output=OutputView(data, kind="http", meta={"attempt": 2})) == expected


def test_an_error_envelope_has_its_error_and_what_was_produced() -> None:
    error = {"kind": "rate_limit", "http_status": 429, "retry_after": None, "retryable": True}
    output = OutputView(ResultView({"status_code": 429, "body": "slow"}, kind="http"), kind="http",
                    error=error)  # fmt: skip
    assert value("output.error.status", output=output) == 429
    assert value("output.error.status_code", output=output) == 429
    assert value("output.error.retry_after is defined", output=output) is False
    assert value("output.data.body", output=output) == "slow"
    assert value("output.http.status == 429", output=output) is True
    nothing = OutputView(kind="http", error={"kind": "connection"})
    assert value("output.http", output=nothing) == {}
    assert value("output.data is defined", output=nothing) is False
    broken = OutputView(error={"kind": "db_constraint", "code": "PG_23505", "pg_code": "23505"})
    assert value("output.pg.sqlstate", output=broken) == "23505"


def test_a_variable_keeps_the_view_and_ctx_receives_the_plain_form() -> None:
    view = ResultView(HTTP, kind="http")
    compiled = compile_value("{{ output }}")
    assert compiled.evaluate({"output": view}) is view
    assert compiled.render({"output": view})["data"] == BODY


STORED = StoredResult(
    reference=PayloadRef(
        uri="u", sha256="d", media_type="application/json", payload_bytes=9, row_count=3
    ),
    locator="noetl://execution/1/result/s/1",
    fields={"count": 3},
)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("s.count", 3),
        ("s.row_count", 3),
        ("s | length", 3),
        ("s.rows | length", 3),
        ("s._ref.ref", "noetl://execution/1/result/s/1"),
        ("s._bytes", 9),
        ("s is defined", True),
        ("'x' if s else 'y'", "x"),
    ],
)
def test_metadata_of_a_stored_result_needs_no_payload(source: str, expected: Any) -> None:
    assert value(source, s=PayloadHandle(STORED)) == expected


@pytest.mark.parametrize("source", ["s", "s.other", "s.rows[2].n", "s | first", "s.count + s.x"])
def test_anything_else_asks_for_the_payload_and_then_renders(source: str) -> None:
    with pytest.raises(PayloadNeeded) as needed:
        value(source, s=PayloadHandle(STORED))
    assert needed.value.stored is STORED
    loaded = ResultView({"other": 1, "x": 1, "rows": [{"n": 1}] * 3, "columns": ["n"]})
    assert value(source, s=PayloadHandle(STORED, load=lambda _: loaded)) is not None


def test_bare_names_resolve_in_the_stated_order() -> None:
    parts = ScopeParts(
        variables={"a": "variable"},
        tasks={"a": "task", "b": "task"},
        iterators={"b": "iterator", "c": "iterator"},
        steps={"c": "step", "d": "step"},
        ctx={"d": "ctx", "e": "ctx", "output": "hidden"},
        workload={"e": "workload", "f": "workload"},
    )
    fixed = {
        "output": OutputView(ResultView({"n": 1})),
        "ctx": parts.ctx,
        last_name_key("input"): {"i": 1, "e": 2},
        last_name_key("payload"): {"p": 1},
    }
    scope = TemplateScope(fixed, parts)
    found = compile_value("{{ [a, b, c, d, e, f] }}").render(scope)
    assert found == ["variable", "task", "iterator", "step", "ctx", "workload"]
    assert compile_value("{{ output.n }}").render(scope) == 1
    assert compile_value("{{ [input.i, payload.p, args.e, args.d, vars.e] }}").render(scope) == [
        1, 1, 2, "ctx", "ctx",
    ]  # fmt: skip
    assert compile_value("{{ [result.n, response.n, outcome.n] }}").render(scope) == [1, 1, 1]
    assert compile_value("{{ error is defined }}").render(scope) is False
    with pytest.raises(TemplateError, match="'unknown' is undefined"):
        compile_value("{{ unknown }}").render(scope)


def test_a_scope_sees_changes_of_its_parts_and_extends_without_touching_them() -> None:
    ctx: dict[str, Any] = {}
    scope = TemplateScope({}, ScopeParts(ctx=ctx))
    ctx["late"] = 1
    inner = scope.extend_scope(build_item_names(iterator="row", item={"id": 7}, index=0, total=2,
                                      loop_id="L"))  # fmt: skip
    assert compile_value("{{ late + iter.row.id + loop.index }}").render(inner) == 8
    assert compile_value("{{ iter._first }}{{ iter._last }} {{ iter._key }}").render(inner) == (
        "truefalse L:0"
    )
    assert "iter" not in scope


def test_steps_with_any_name_are_reached_by_index() -> None:
    steps = ViewNamespace({"a/b": OutputView(ResultView({"n": 4}))})
    assert value("steps['a/b'].data.n", steps=steps) == 4
    assert value("steps['a/b'].status", steps=steps) == "ok"
    assert value("steps.gone is defined", steps=steps) is False


def test_an_error_says_whether_to_retry_and_names_its_status_thrice() -> None:
    error = {"kind": "not_found", "status": 404, "code": None}
    for shown in (OutputView(error=error), ResultView({"body": 1}, kind="http", error=error)):
        assert value("o.error.retryable", o=shown) is False
        assert value("[o.error.status_code, o.error.http_status]", o=shown) == [404, 404]
        assert value("o.error.code is defined", o=shown) is False
