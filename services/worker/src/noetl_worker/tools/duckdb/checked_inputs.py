"""Inputs of a DuckDB task whose rows are held to what is expected of them, before it begins."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
from msgspec import Struct

from noetl_playbook.model.expectations import Expectations
from noetl_playbook.templates.output_forms import sql_ident
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.domain.check_reports import CheckFindings
from noetl_worker.sql import queries
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.duckdb.duckdb_session import DuckdbSession, QueryScan
from noetl_worker.tools.tables import dataset_results, row_checks, stored_parts
from noetl_worker.tools.tables.row_checks import CheckScope, KeyReader

_QUERIES = queries.load_queries(__package__, "checked_inputs")


class CheckedInputs(Struct, frozen=True, kw_only=True):
    """The tables and data sets that a task reads, and what checks have found in them."""

    views: Mapping[str, Any]
    findings: dict[str, CheckFindings] = {}

    def build_key_reader(self, session: DuckdbSession) -> KeyReader:
        """Return what reads a column of an input; other tables of the session are none."""

        def read_keys(name: str, column: str) -> Iterable[pa.RecordBatch] | None:
            if name not in self.views:
                return None
            if column not in self.views[name].schema.names:
                text = f"expect.foreign_key: input '{name}' has no column '{column}'"
                raise DatasetProblem("validation", text)
            query = _QUERIES["read_keys"].format(column=sql_ident(column), input=sql_ident(name))
            return _scan_query(session, query).batches

        return read_keys


def check_inputs(
    session: DuckdbSession,
    views: Mapping[str, Any],
    expected: Mapping[str, Expectations],
    *,
    call: Call,
    now: datetime,
) -> CheckedInputs:
    """Check registered inputs, and leave out the rows that are to be diverted.

    Raises `ToolFailure`, also for rows that break what must hold. It blocks.
    """
    inputs = CheckedInputs(views=views)
    findings: dict[str, CheckFindings] = {}
    for name, expectations in expected.items():
        label = f"input '{name}'"
        scope = CheckScope(
            dataset=label,
            now=now,
            read_keys=inputs.build_key_reader(session),
            hold_stop=session.hold_stop,
        )
        with (
            dataset_results.translate_problems(call, label),
            row_checks.open_checks(expectations, scope) as checks,
        ):
            scan = _scan_query(session, _QUERIES["read_rows"].format(input=sql_ident(name)))
            checks.check_columns(scan.schema)
            for batch in scan.batches:
                checks.filter_batch(batch)
            findings[name] = checks.finish()
    for name, input_findings in findings.items():
        # What is shown of the diverted rows is bounded, and may be none of them.
        condition = row_checks.write_conditions(expected[name])
        if expected[name].on_fail == "divert" and condition and not input_findings.are_all_met:
            _narrow_input(session, name, views[name], condition)
    return CheckedInputs(views=views, findings=findings)


def _narrow_input(session: DuckdbSession, name: str, table: Any, condition: str) -> None:
    """Leave out the rows that do not meet a check of single rows."""
    whole = f"{name} before its checks"
    session.unregister_table(name)
    session.register_table(whole, table)
    query = _QUERIES["narrow_input"].format(
        input=sql_ident(name),
        whole=sql_ident(whole),
        condition=condition,
    )
    session.fetch_rows(query, [])


def _scan_query(session: DuckdbSession, query: str) -> QueryScan:
    scan = session.scan_query(query, [], size=stored_parts.BATCH_ROWS)
    assert scan is not None, "a SELECT has rows"
    return scan
