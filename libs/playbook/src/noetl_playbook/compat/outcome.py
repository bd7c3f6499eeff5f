"""The older name `outcome` in templates: it is `output`, and `outcome.result` is `output.data`."""

from typing import Any

from noetl_playbook.compat import template_renames
from noetl_playbook.compat.template_renames import NotAnExpressionError
from noetl_playbook.model.coercion import is_template
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path, write_flow, write_fragment

_OLDER = "outcome"
_TO = {_OLDER: "output", f"{_OLDER}.result": "output.data"}
# Keys that hold conditions, by the one that replacements show.
_CONDITIONS = dict.fromkeys(("when", "expr", "cond", "condition"), "when")
_NEVER_RENDERED = frozenset({"desc", "description"})


def rename_outcome(reading: DocumentReader, value: Any, path: Path) -> Any:
    """Rename it in every template of a section, unless the document gives the name a meaning."""
    if _defines_outcome(reading.document.value):
        return value
    return _rename_within(reading, value, path)


def _defines_outcome(value: Any) -> bool:
    """Tell whether something of the document itself is named so."""
    if isinstance(value, dict):
        return any(
            key == _OLDER or key.endswith(f".{_OLDER}") or item == _OLDER or _defines_outcome(item)
            for key, item in value.items()
        )
    return isinstance(value, list) and any(_defines_outcome(item) for item in value)


def _rename_within(reading: DocumentReader, value: Any, path: Path) -> Any:
    if isinstance(value, str):
        return _rename_in_text(reading, value, path) if _OLDER in value else value
    if isinstance(value, dict):
        renamed = {
            key: item if key in _NEVER_RENDERED else _rename_within(reading, item, (*path, key))
            for key, item in value.items()
        }
        return renamed if any(renamed[key] is not value[key] for key in renamed) else value
    if isinstance(value, list):
        items = [_rename_within(reading, item, (*path, index)) for index, item in enumerate(value)]
        return (
            items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        )
    return value


def _rename_in_text(reading: DocumentReader, source: str, path: Path) -> str:
    key = path[-1]
    is_bare = key in _CONDITIONS and not is_template(source)
    names = template_renames.rename_names(
        template_renames.wrap_in_braces(source) if is_bare else source, _TO
    )
    if is_bare:
        try:
            names = template_renames.extract_expression(names)
        except NotAnExpressionError:
            return source
    if names == source.strip() or names == source:
        return source
    reading.report_problem(
        "W902",
        path,
        "'outcome' is an older name of 'output'",
        replacement=write_fragment(_CONDITIONS.get(key, key), names)
        if isinstance(key, str)
        else write_flow(names),
    )
    return names
