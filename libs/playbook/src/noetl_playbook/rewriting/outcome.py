"""The older name `outcome` in templates: it is `output`, and `outcome.result` is `output.data`."""

from typing import Any

from noetl_playbook.coercion import is_template
from noetl_playbook.fragments import flow, fragment
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading
from noetl_playbook.rewriting import renaming
from noetl_playbook.rewriting.renaming import NotAnExpressionError

_OLDER = "outcome"
_TO = {_OLDER: "output", f"{_OLDER}.result": "output.data"}
# Keys that hold conditions, by the one that replacements show.
_CONDITIONS = dict.fromkeys(("when", "expr", "cond", "condition"), "when")
_NEVER_RENDERED = frozenset({"desc", "description"})


def rewritten(reading: Reading, value: Any, path: Path) -> Any:
    """Rename it in every template of a section, unless the document gives the name a meaning."""
    if _gives_meaning(reading.document.value):
        return value
    return _within(reading, value, path)


def _gives_meaning(value: Any) -> bool:
    """Tell whether something of the document itself is named so."""
    if isinstance(value, dict):
        return any(
            key == _OLDER or key.endswith(f".{_OLDER}") or item == _OLDER or _gives_meaning(item)
            for key, item in value.items()
        )
    return isinstance(value, list) and any(_gives_meaning(item) for item in value)


def _within(reading: Reading, value: Any, path: Path) -> Any:
    if isinstance(value, str):
        return _text(reading, value, path) if _OLDER in value else value
    if isinstance(value, dict):
        found = {
            key: item if key in _NEVER_RENDERED else _within(reading, item, (*path, key))
            for key, item in value.items()
        }
        return found if any(found[key] is not value[key] for key in found) else value
    if isinstance(value, list):
        items = [_within(reading, item, (*path, index)) for index, item in enumerate(value)]
        return (
            items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        )
    return value


def _text(reading: Reading, source: str, path: Path) -> str:
    key = path[-1]
    is_bare = key in _CONDITIONS and not is_template(source)
    found = renaming.renamed(renaming.braced(source) if is_bare else source, _TO)
    if is_bare:
        try:
            found = renaming.expression(found)
        except NotAnExpressionError:
            return source
    if found == source.strip() or found == source:
        return source
    reading.report(
        "W902",
        path,
        "'outcome' is an older name of 'output'",
        replacement=fragment(_CONDITIONS.get(key, key), found)
        if isinstance(key, str)
        else flow(found),
    )
    return found
