"""Rewrites short and older forms of a step's `next` as `next: {spec, arcs}`."""

from typing import Any

from noetl_playbook.compat import template_renames
from noetl_playbook.compat.placed_tasks import map_response_names
from noetl_playbook.sections.policies import gather_sets, rename_older_when
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path, write_fragment

_OLDER_VALUES = ("args", "data", "payload", "with", "input")
_MODES = ("exclusive", "inclusive")

# A raw arc, its path in the document, and the path of its condition.
PlacedArc = tuple[dict[str, Any], Path, Path]


def rename_arc_keys(reading: DocumentReader, value: dict[str, Any], path: Path) -> dict[str, Any]:
    """Spell an arc's older keys as the canonical ones."""
    raw = rename_older_when(reading, value, path)
    for older in _OLDER_VALUES:
        if older in raw:
            raw = _move_values_to_set(reading, raw, path, older=older)
    return gather_sets(reading, raw, path)


def _move_values_to_set(
    reading: DocumentReader, raw: dict[str, Any], path: Path, *, older: str
) -> dict[str, Any]:
    block = dict(reading.read_mapping(raw.get("set"), (*path, "set")) or {})
    for name, item in (reading.read_mapping(raw[older], (*path, older)) or {}).items():
        block.setdefault(f"ctx.{name}", item)
        reading.record_move((*path, older, name), (*path, "set", f"ctx.{name}"))
    reading.report_problem(
        "W902",
        (*path, older),
        f"'{older}' on an arc is an older form",
        of_key=True,
        replacement=write_fragment("set", block),
    )
    return {**{key: item for key, item in raw.items() if key != older}, "set": block}


def rewrite_next(reading: DocumentReader, step: dict[str, Any], path: Path) -> dict[str, Any]:
    """Give a step whose `next` is absent or a mapping."""
    value = step.get("next")
    spec = step.get("spec")
    written_mode = spec.get("next_mode") if isinstance(spec, dict) else None
    inner_path = (*path, "next")
    if isinstance(value, str | bool | int | float | list):
        next_arcs = _rewrite_next_list(reading, value, inner_path, mode=written_mode)
        if _has_branches(value):
            reading.report_problem(
                "W903",
                inner_path,
                "'then' and 'else' in 'next' are an older form",
                replacement=write_fragment("next", next_arcs),
            )
        return {**step, "next": next_arcs}
    if written_mode in _MODES and isinstance(value, dict) and not _find_mode(value):
        inner = value.get("spec")
        next_arcs = {
            **value,
            "spec": {**(inner if isinstance(inner, dict) else {}), "mode": written_mode},
        }
        reading.report_problem(
            "W902",
            (*path, "spec", "next_mode"),
            "'next_mode' is an older form",
            of_key=True,
            replacement=write_fragment("next", {"spec": {"mode": written_mode}}),
        )
        return {**step, "next": next_arcs}
    return step


def _has_branches(value: Any) -> bool:
    """Tell whether a list of targets uses `then` or `else`, which short forms do not have."""
    items = value if isinstance(value, list) else []
    return any(isinstance(item, dict) and {"then", "else"} & item.keys() for item in items)


def _find_mode(value: dict[str, Any]) -> Any:
    spec = value.get("spec")
    return spec.get("mode") if isinstance(spec, dict) else None


def _rewrite_next_list(
    reading: DocumentReader, value: Any, path: Path, *, mode: Any
) -> dict[str, Any]:
    placed_items: list[tuple[Any, Path]] = [(value, path)]
    if isinstance(value, list):
        placed_items = [(item, (*path, index)) for index, item in enumerate(value)]
    placed_arcs: list[tuple[Any, Path, Path | None]] = []
    for item, inner_path in placed_items:
        placed_arcs += _list_arcs(reading, item, inner_path)
    is_conditional = any(
        isinstance(arc, dict) and {"when", "on"} & arc.keys() for arc, _, _ in placed_arcs
    )
    if mode not in _MODES:
        mode = "exclusive" if is_conditional else "inclusive"
    read_at: dict[Path, Path] = {}
    for index, (_, inner_path, when) in enumerate(placed_arcs):
        read_at[(*path, "arcs", index)] = inner_path
        if when is not None:
            read_at[(*path, "arcs", index, "when")] = when
    reading.record_moves(read_at)
    return {"spec": {"mode": mode}, "arcs": [arc for arc, _, _ in placed_arcs]}


def _list_arcs(
    reading: DocumentReader, item: Any, path: Path
) -> list[tuple[Any, Path, Path | None]]:
    """List the arcs of one item: a step's name, an arc, or targets under a condition."""
    if (name := reading.read_text(item, path)) is not None:
        return [({"step": name}, path, None)]
    if not isinstance(item, dict):
        reading.report_wrong_type(path, "a step name or an arc", item)
        return []
    if "then" not in item and "else" not in item:
        return [(rename_arc_keys(reading, item, path), path, None)]
    item = rename_older_when(reading, item, path)
    branch = "then" if "then" in item else "else"
    when = item.get("when") if branch == "then" else None
    is_list = isinstance(item[branch], list)
    targets = item[branch] if is_list else [item[branch]]
    arcs: list[tuple[Any, Path, Path | None]] = []
    for index, target in enumerate(targets):
        inner_path = (*path, branch, index) if is_list else (*path, branch)
        raw = {"step": target} if isinstance(target, str) else target
        if not isinstance(raw, dict):
            reading.report_wrong_type(inner_path, "a step name or an arc", raw)
            continue
        raw = rename_arc_keys(reading, raw, inner_path)
        has_condition = "when" in raw or when is None
        arcs.append(
            (
                raw if has_condition else {**raw, "when": when},
                inner_path,
                None if has_condition else (*path, "when"),
            )
        )
    return arcs


def prepend_arcs(following: Any, first: list[PlacedArc]) -> Any:
    """Put arcs before the ones of a canonical `next`; the first that matches fires."""
    if not first:
        return following
    next_section = following if isinstance(following, dict) else {}
    spec = next_section.get("spec")
    arcs = next_section.get("arcs")
    return {
        **next_section,
        "spec": {**(spec if isinstance(spec, dict) else {}), "mode": "exclusive"},
        "arcs": [*(arc for arc, _, _ in first), *(arcs if isinstance(arcs, list) else [])],
    }


def record_arc_moves(
    reading: DocumentReader, path: Path, first: list[PlacedArc], *, following: Any
) -> None:
    """Remember where arcs that were put first come from, and which the others were."""
    if not first:
        return
    inner_path = (*path, "next", "arcs")
    read_at: dict[Path, Path] = {
        (*inner_path, index): (*inner_path, index - len(first))
        for index in range(len(first), len(following["arcs"]))
    }
    for index, (_, arc, when) in enumerate(first):
        read_at[(*inner_path, index)] = arc
        read_at[(*inner_path, index, "when")] = when
    reading.record_moves(read_at)


def bind_response_to_main(
    arcs: list[PlacedArc], *, main: dict[str, Any], collects: bool
) -> list[PlacedArc]:
    """Let `response` mean the main task's result when the step's own holds more than that."""
    key = template_renames.append_key("output.data", str(main["name"]))
    to = map_response_names(main, collects=collects, root=key)
    return [(template_renames.rename_names_within(arc, to), here, when) for arc, here, when in arcs]
