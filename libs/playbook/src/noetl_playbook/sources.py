"""Which list a value means when it is given to a loop (language, 7.1)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl_playbook.lookup import Lookup
from noetl_playbook.views import ResultView


class NoCollectionError(Exception):
    """A value is no collection."""


def rows_of(value: Any) -> list[Any]:
    """Return the list that a rendered value means; raises `NoCollectionError`.

    Null is for the caller to decide about, and so are whole numbers: a long range is never built.
    """
    if isinstance(value, ResultView):
        value = _of_view(value)
    elif isinstance(value, Lookup):
        value = value.plain()
    match value:
        case str():
            return _of_text(value)
        case Mapping():
            return _of_mapping(value)
        case list():
            return value
        case tuple():
            return list(value)
        case _:
            raise NoCollectionError(type(value).__name__)


def _of_view(view: ResultView) -> Any:
    """Take the list from a result without walking its rows."""
    raw = view.raw
    if type(raw) is dict and isinstance(raw.get("rows"), list):
        return raw["rows"]
    if view.kind == "loop":
        return raw["results"]
    return raw if isinstance(raw, list) else view.plain()


def _of_mapping(value: Mapping[str, Any]) -> list[Any]:
    if isinstance(value.get("rows"), list):
        return list(value["rows"])
    if isinstance(value.get("results"), list) and "stats" in value:
        return list(value["results"])
    return [{"key": key, "value": item} for key, item in value.items()]


def _of_text(value: str) -> list[Any]:
    try:
        found = msgspec.json.decode(value)
    except ValueError as error:
        raise NoCollectionError("text that is no JSON") from error
    if not isinstance(found, list):
        raise NoCollectionError("text that holds no JSON list")
    return found
