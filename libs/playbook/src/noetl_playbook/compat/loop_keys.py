"""Older keys of loops, on a step and on the `iterator` of a task."""

from typing import Any

from noetl_playbook.compat.legacy_keys import rename_keys
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path, write_flow, write_fragment

_OLDER_LOOP = {"collection": "in", "element": "iterator", "item": "iterator", "as": "iterator"}
_OLDER_ITERATOR = {"items": "in", "collection": "in", "item": "iterator", "element": "iterator"}
_ITERATOR_KEYS = ("iterator", "element", "item", "as")
_OLDER_SPEC = {
    **dict.fromkeys(("concurrency", "max_concurrency", "parallelism"), "max_in_flight"),
    "batch_size": "chunk_size",
}
_SPEC_KEYS = frozenset(
    {"mode", "max_in_flight", "chunk_size", "frame", "fanout", "collect", "max_attempts", "policy"}
)


def rewrite_iterator(
    reading: DocumentReader, value: dict[str, Any], path: Path, loop_path: Path
) -> dict[str, Any]:
    """Write the older `iterator` of a task as the loop of its step, at `loop_path`."""
    loop: dict[str, Any] = {"iterator": "item"}
    spec: dict[str, Any] = {}
    for key, item in value.items():
        canonical = _OLDER_ITERATOR.get(key, key)
        inner = _OLDER_SPEC.get(key, key)
        if inner in _SPEC_KEYS:
            spec[inner] = _rename_mode(item)
            reading.record_move((*path, key), (*loop_path, "spec", inner))
        else:
            loop[canonical] = item
            reading.record_move((*path, key), (*loop_path, canonical))
    return {**loop, "spec": spec} if spec else loop


def rewrite_loop(reading: DocumentReader, value: Any, path: Path) -> Any:
    """Spell a loop's older keys as canonical ones, and move those of its spec down into it."""
    if not isinstance(value, dict):
        return value
    if "collection" in value and not any(value.get(key) for key in _ITERATOR_KEYS):
        value = _name_item(reading, value, path)
    raw = rename_keys(reading, value, path, renames=_OLDER_LOOP)
    keys = {key for key in raw if key in _SPEC_KEYS or key in _OLDER_SPEC}
    if keys:
        spec = dict(reading.read_mapping(raw.get("spec"), (*path, "spec")) or {})
        for key in sorted(keys):
            canonical = _OLDER_SPEC.get(key, key)
            reading.report_problem(
                "W902",
                (*path, key),
                f"'{key}' on the loop is an older form",
                of_key=True,
                replacement=write_fragment("spec", {canonical: _rename_mode(raw[key])}),
            )
            spec.setdefault(canonical, _rename_mode(raw.pop(key)))
            reading.record_move((*path, key), (*path, "spec", canonical))
        raw["spec"] = spec
    if isinstance(raw.get("spec"), dict):
        raw["spec"] = rename_keys(reading, raw["spec"], (*path, "spec"), renames=_OLDER_SPEC)
    return raw


def _name_item(reading: DocumentReader, value: dict[str, Any], path: Path) -> dict[str, Any]:
    """Name the item of an older collection whose loop does not."""
    fields = {("in" if key == "collection" else key): item for key, item in value.items()}
    fields = {**fields, "iterator": "item"}
    reading.report_problem(
        "W902",
        (*path, "collection"),
        "'collection' is an older form",
        of_key=True,
        replacement=write_flow({"in": fields["in"], "iterator": "item"}),
    )
    reading.record_move((*path, "collection"), (*path, "in"))
    return fields


def _rename_mode(value: Any) -> Any:
    return "parallel" if value == "async" else value
