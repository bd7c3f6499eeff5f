"""A query's rows as Arrow batches of exact types, by a connection of its own that only reads.

The rows are copied in binary form and converted in compiled code. Types are those of Spark's
inputs from PostgreSQL: a `numeric` of declared digits is a decimal of these, arrays are lists,
and types that Arrow has none for are texts.
"""

import asyncio
import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pyarrow as pa
from msgspec import Struct

from noetl_chassis.blocking_work import StopSign, run_until_stopped
from noetl_worker.datasets.batch_sink import SinkPlan
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.spark.postgres.read_request import ReadRequest
from noetl_worker.spark.tables import store_access
from noetl_worker.spark.tables.store_access import SparkRefusal
from noetl_worker.sql import server_names, sql_statements
from noetl_worker.sql.sql_statements import PlaceholderError, Statement
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.postgres.row_windows import parse_one_statement
from noetl_worker.tools.postgres.task_fields import parse_statement_timeout_s
from noetl_worker.tools.tables import dataset_results

_WHOLE = "true"


class QueryRows(Struct, frozen=True, kw_only=True):
    """A query that runs: its columns, and its rows as they come."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def parse_request(fields: Mapping[str, Any], *, name: str) -> ReadRequest:
    """Read `query` and `params`; raises `ToolFailure`."""
    params = fields.get("params")
    statement = parse_one_statement(fields.get("query"), params)
    try:
        values = sql_statements.order_arguments(statement, params)
    except PlaceholderError as problem:
        raise ToolFailure(build_error("validation", str(problem), source="postgres")) from problem
    return build_request(statement, values, name=name)


def build_request(statement: Statement, values: list[Any], *, name: str) -> ReadRequest:
    """Describe a query with the values of its parameters."""
    return ReadRequest(name=name, query=statement.text, values=values)


async def export_query(
    statements: tuple[Statement, ...], call: Call, *, credential: Credential, plan: SinkPlan
) -> dict[str, Any]:
    """Write the rows of a task's one query into a dataset; raises `ToolFailure`."""
    if len(statements) != 1:
        raise _build_refusal(
            f"output takes the rows of one query, and there are {len(statements)} statements: run "
            "the others in a task of their own"
        )
    if call.transaction is not None:
        raise _build_refusal(
            "output is read by a connection of its own, which does not see the transaction of the "
            "frame: leave 'transaction' out, or write the dataset in a later step"
        )
    (statement,) = statements
    request = build_request(
        statement,
        sql_statements.order_arguments(statement, call.fields.get("params")),
        name="the query",
    )

    limit_s = parse_statement_timeout_s(call.fields)

    def copy_rows(sign: StopSign) -> dict[str, Any]:
        with (
            open_query(credential, request, sign, statement_timeout_s=limit_s) as rows,
            dataset_results.translate_problems(call, "output"),
        ):
            written = dataset_results.write_batches(
                plan, rows.schema, rows.batches, hold_stop=sign.interrupt_by
            )
        return dataset_results.show_written(written)

    async with asyncio.timeout(call.timeout.total):
        return await run_until_stopped(copy_rows)


@contextmanager
def open_query(
    credential: Credential,
    request: ReadRequest,
    sign: StopSign,
    *,
    statement_timeout_s: float | None = None,
) -> Iterator[QueryRows]:
    """Run a query and hold its connection until the sign; raises `ToolFailure`. It blocks."""
    try:
        # Workers without Arrow's driver run all other tasks.
        connecting = importlib.import_module("noetl_worker.spark.postgres.server_connection")
        planning = importlib.import_module("noetl_worker.spark.postgres.read_plan")
        columns = importlib.import_module("noetl_worker.spark.postgres.read_columns")
    except ImportError as problem:
        text = "rows of PostgreSQL go into a dataset by Arrow's driver: install noetl-worker[spark]"
        raise ToolFailure(build_error("config", text, source="postgres")) from problem
    server = server_names.describe_server(credential.fields)
    about = ", ".join(filter(None, (f"credential '{credential.name}'", server)))
    with _translate_refusals(), ExitStack() as stack:
        session = stack.enter_context(
            connecting.open_arrow_session(
                credential.fields, credential=credential.name, about=f"{request.name} ({about})"
            )
        )
        stack.enter_context(sign.interrupt_by(session.cancel_statement))
        session.begin_reading(None)
        if statement_timeout_s is not None:
            session.limit_statements(statement_timeout_s)
        plan = planning.plan_read(session, request, snapshot="", about=f"{request.name} ({about})")
        # A connection closes after its cursors, also when a value is refused.
        reading = stack.enter_context(closing(session.read_batches(plan.build_statement(_WHOLE))))
        yield QueryRows(
            schema=columns.build_schema(plan.columns),
            batches=(
                converted
                for batch in sign.iterate_until(reading)
                for converted in columns.convert_batch(batch, plan.columns, about=plan.about)
            ),
        )


@contextmanager
def _translate_refusals() -> Iterator[None]:
    try:
        yield
    except SparkRefusal as problem:
        about = store_access.find_refusal(str(problem)) or {"kind": "internal", "message": ""}
        error_codes = {name: about[name] for name in ("code", "pg_code") if name in about}
        error = build_error(about["kind"], about["message"], source="postgres", **error_codes)
        raise ToolFailure(error) from problem


def _build_refusal(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source="postgres"))
