"""Tells whether jsonb gives the keys of an event's mappings back in the order they came in.

jsonb keeps the keys of a mapping by their length in bytes, then by their bytes. Templates see the
order: `tojson`, loops over mappings, the columns of a table. Mappings that only this project's
code reads have their order for nobody, and are left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from noetl_contracts.commands.loop_collections import CollectionForm

# Of an event's own fields, those that hold values of playbooks and of their users.
_USER_FIELDS = ("workload", "ctx", "patch", "collection", "attributes")


def keeps_key_order(body: Mapping[str, Any], result: Any, error: Any) -> bool:
    """Tell it of the values in an event's fields, result and error that playbooks can see."""
    return all(is_in_kept_order(value) for value in _list_user_values(body, result, error))


def is_in_kept_order(value: Any) -> bool:
    """Tell whether every mapping in a plain value has its keys in jsonb's order."""
    if isinstance(value, dict):
        before = (-1, b"")
        for key, item in value.items():
            key_bytes = key.encode(errors="surrogatepass")
            place = (len(key_bytes), key_bytes)
            if place < before or not is_in_kept_order(item):
                return False
            before = place
        return True
    return not isinstance(value, list) or all(is_in_kept_order(item) for item in value)


def _list_user_values(body: Mapping[str, Any], result: Any, error: Any) -> Iterator[Any]:
    for name in _USER_FIELDS:
        if name in body:
            yield body[name]
    if "wait" in body:
        yield body["wait"].get("workload")
    for step in body.get("steps", ()):
        yield from _list_result_values(step.get("result"))
        yield _find_details(step.get("error"))
    yield from _list_result_values(result)
    yield _find_details(error)
    yield _find_details(body.get("failure"))


def _find_details(error: Any) -> Any:
    return error.get("details") if isinstance(error, dict) else None


def _list_result_values(result: Any) -> Iterator[Any]:
    """Yield what a result envelope holds inline; of a pipeline, what each task returned."""
    if not isinstance(result, dict):
        return
    context = result.get("context", {})
    data = context.get("data")
    if context.get("shape") == CollectionForm.PIPELINE and isinstance(data, dict):
        for task in data.get("tasks", {}).values():
            yield from task.values()
        return
    yield data
    yield context.get("fields")
