"""Fields that take a stored result as it is: its reference travels, not its content."""

from collections.abc import Mapping
from typing import Any

from noetl_contracts import locators
from noetl_playbook import forms
from noetl_playbook.expressions import compile_value
from noetl_playbook.handles import Handle
from noetl_playbook.parts import PartViews
from noetl_playbook.scope import Scope

FIELDS_BY_REFERENCE: Mapping[str, frozenset[str]] = {
    "duckdb": frozenset({"inputs"}),
    "spark": frozenset({"inputs"}),
    "artifact": frozenset({"result_ref"}),
    "transfer": frozenset({"source"}),
}


def by_references(source: Any, scope: Scope, steps: Mapping[str, Any]) -> Any:
    """Render a value; a stored result in it becomes its `_ref` mapping, and so does its locator.

    Raises `TemplateError`, and `PayloadNeeded` where a template asks for content.
    """
    if isinstance(source, dict):
        return {key: by_references(item, scope, steps) for key, item in source.items()}
    if isinstance(source, list | tuple):
        return [by_references(item, scope, steps) for item in source]
    found = compile_value(source).evaluate(scope)
    if isinstance(found, Handle):
        return found.stored.as_mapping()
    if isinstance(found, PartViews):
        return found.by_reference()
    if isinstance(found, str) and found.startswith(locators.SCHEME):
        return _located(found, steps)
    return forms.plain(found)


def _located(text: str, steps: Mapping[str, Any]) -> Any:
    """Turn the locator of a result that the task's templates name into its reference."""
    for view in steps.values():
        if isinstance(view, Handle) and view.stored.locator == text:
            return view.stored.as_mapping()
    return text
