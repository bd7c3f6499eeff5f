"""Fields that take a stored result as it is: its reference travels, not its content."""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from noetl_contracts import locators
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_playbook.templates import output_forms
from noetl_playbook.templates.expressions import compile_value
from noetl_playbook.templates.scope import TemplateScope
from noetl_playbook.views import result_envelope
from noetl_playbook.views.loop_parts import LoopPartList
from noetl_playbook.views.payload_handle import PayloadHandle
from noetl_playbook.views.result_view import ResultView

FIELDS_BY_REFERENCE: Mapping[str, frozenset[str]] = {
    "duckdb": frozenset({"inputs"}),
    "spark": frozenset({"inputs"}),
    "artifact": frozenset({"result_ref"}),
    "transfer": frozenset({"source"}),
}


# The rows of a result, as a template names them alone.
_ROWS = re.compile(r"\{\{-?\s*(?P<table>[A-Za-z_]\w*(?:\.\w+|\[[^\]]+\])*)\.rows\s*-?\}\}")
_TABLE_FORMATS = frozenset({"parquet", "arrow", "csv"})


def render_by_reference(source: Any, scope: TemplateScope, *, are_tables: bool) -> Any:
    """Render a value; a stored result in it becomes its `_ref` mapping, and so does its locator.

    Where values `are_tables`, the rows of a result are the table that they belong to, with its
    types; so is what is given as `data`. Raises `TemplateError`, and `PayloadNeeded` where a
    template asks for content.
    """
    if isinstance(source, dict):
        return {
            key: render_by_reference(item, scope, are_tables=are_tables or key == "data")
            for key, item in source.items()
        }
    if isinstance(source, list | tuple):
        return [render_by_reference(item, scope, are_tables=are_tables) for item in source]
    reference = compile_value(source).evaluate(scope)
    if are_tables and isinstance(reference, list):
        return find_typed_table(source, output_forms.to_plain(reference), scope)
    if isinstance(reference, PayloadHandle):
        return reference.stored.as_mapping()
    if isinstance(reference, LoopPartList):
        return reference.to_reference_form()
    if isinstance(reference, str) and reference.startswith(locators.SCHEME):
        return _resolve_locator(reference, scope)
    return output_forms.to_plain(reference)


def find_typed_table(source: Any, rows: list[Any], scope: TemplateScope) -> Any:
    """Return the table with types whose rows a template names, or the rows that it made."""
    rows_match = _ROWS.fullmatch(source.strip()) if isinstance(source, str) else None
    if rows_match is None:
        return rows
    table = compile_value(f"{{{{ {rows_match['table']} }}}}").evaluate(scope)
    if not isinstance(table, Mapping) or table.get("types") is None:
        return rows
    return {"columns": table["columns"], "types": table["types"], "rows": rows}


def build_typed_content(fields: Mapping[str, Any], source: Any, scope: TemplateScope) -> Any:
    """Return the content of an artifact: rows in a format of tables are written with types."""
    data = fields.get("data")
    if fields.get("format") not in _TABLE_FORMATS or not isinstance(data, list):
        return data
    return find_typed_table(source, data, scope)


def _resolve_locator(text: str, scope: TemplateScope) -> Any:
    """Turn the locator of a result that the task's templates name into its reference."""
    for views in (scope.parts.steps, scope.parts.tasks):
        for view in views.values():
            if isinstance(view, PayloadHandle) and view.stored.locator == text:
                return view.stored.as_mapping()
    return text


def build_handle(
    envelope: ResultEnvelope,
    view: ResultView,
    *,
    execution_id: str,
    step: str,
    run: str,
    task: str,
) -> PayloadHandle:
    """Show what a task has given as stored; its content is at hand, so nothing is loaded."""
    handle = result_envelope.view_result(
        envelope, execution_id=execution_id, step=step, run=run, find=_refuse_to_find
    )
    assert isinstance(handle, PayloadHandle), "the envelope has a reference"
    locator = locators.build_result_locator(execution_id, step, run, task)
    # Fields beside the reference are masked, as what leaves the worker is; the view is not.
    return PayloadHandle(
        structs.replace(handle.stored, locator=locator, fields={}), load=lambda _: view
    )


def _refuse_to_find(_: PayloadRef) -> Any:
    raise AssertionError("what is shown is at hand")
