"""Repeating on success: a task that is called again until its condition no longer holds."""

from typing import Any

from noetl_playbook.compat import retry, template_renames
from noetl_playbook.compat.placed_tasks import PlacedTask, map_response_names
from noetl_playbook.compat.retry import REPEATS_DEFAULT, RetryEntry
from noetl_playbook.compat.template_renames import NotAnExpressionError
from noetl_playbook.model import coercion, tools
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path

COLLECTED_AS = "data"

_COUNT = "{{ (iter.calls | default(0)) + 1 }}"
_RESPONSE = ("response.", "result.")
_COLLECT_MOVES = (
    *(("strategy", "strategy"), ("merge_path", "path"), ("manifest_as", "into")),
    ("max_bytes", "max_bytes"),
)
_BOUNDS = ("max_pages", "max_attempts")
_COLLECT_KEYS = ("strategy", "path", "into", "max_bytes")


def find_collected_path(entry: RetryEntry) -> str:
    """Tell which part of a response an entry collects; empty when it is the whole."""
    collect = entry.raw.get("collect")
    if isinstance(collect, str):
        return collect
    path = collect.get("path") if isinstance(collect, dict) else None
    return path if isinstance(path, str) else ""


def hides_response_data(entries: list[RetryEntry]) -> bool:
    """Tell whether the collected list is kept under the name that a response's data has."""
    collecting = next((entry for entry in entries if "collect" in entry.raw), None)
    if collecting is None:
        return False
    collect = collecting.raw["collect"]
    into = collect.get("into") if isinstance(collect, dict) else None
    return into in (None, COLLECTED_AS)


def check_hidden_data(reading: DocumentReader, main: PlacedTask, entries: list[RetryEntry]) -> None:
    """Report a repeat that reads `response.data` where the collected list has that name."""
    if main.raw.get("kind") == "http" or not hides_response_data(entries):
        return
    collecting = next(entry for entry in entries if "collect" in entry.raw)
    conditions = [
        item for entry in entries for item in (entry.when_condition, entry.raw.get("next_call"))
    ]
    paths = {
        path
        for text in template_renames.list_texts(*conditions)
        for path in template_renames.list_reads(text)[1]
    }
    response_paths = [path.partition(".")[2] for path in paths if path.startswith(_RESPONSE)]
    response_paths.append(find_collected_path(collecting))
    if any(path.split(".")[0] == COLLECTED_AS for path in response_paths):
        reading.report_problem(
            "W908",
            collecting.build_key_path("collect"),
            f"the collected list hides '{COLLECTED_AS}' of the response",
            hint="name the list with collect.into",
        )


def prepare_main_task(reading: DocumentReader, main: PlacedTask, entries: list[RetryEntry]) -> None:
    """Make the main task count its calls, collect, and take what the next call changes."""
    task = main.raw
    set_block = task.get("set")
    task["set"] = {**(set_block if isinstance(set_block, dict) else {}), "iter.calls": _COUNT}
    collecting = [entry for entry in entries if "collect" in entry.raw]
    for entry in collecting[1:]:
        reading.report_problem(
            "E104",
            entry.build_key_path("collect"),
            "only one entry may collect",
            hint="repeat under one condition, or write the tasks",
        )
    if collecting:
        check_hidden_data(reading, main, entries)
        _add_accumulate(reading, main, collecting[0])
    for entry in entries:
        call, path = entry.raw.get("next_call"), entry.build_key_path("next_call")
        if call is not None and reading.read_mapping(call, path):
            _accept_next_call(reading, main, entry, call)


def _add_accumulate(reading: DocumentReader, main: PlacedTask, entry: RetryEntry) -> None:
    place = entry.build_key_path("collect")
    value = entry.raw["collect"]
    raw = {"path": value} if isinstance(value, str) else reading.read_mapping(value, place)
    raw = {} if value is True else raw or {}
    for key in raw:
        if key not in _COLLECT_KEYS:
            reading.report_unknown((*place, key), _COLLECT_KEYS)
    accumulation: dict[str, Any] = {"strategy": raw.get("strategy") or "append"}
    if raw.get("path"):
        accumulation["merge_path"] = raw["path"]
    accumulation["manifest_as"] = raw.get("into") or COLLECTED_AS
    if raw.get("max_bytes") is not None:
        accumulation["max_bytes"] = raw["max_bytes"]
    output = main.raw.get("output")
    main.raw["output"] = {
        **(output if isinstance(output, dict) else {}),
        "accumulate": accumulation,
    }
    for new, old in _COLLECT_MOVES:
        main.moves[("output", "accumulate", new)] = (*place, old)


def _accept_next_call(
    reading: DocumentReader, main: PlacedTask, entry: RetryEntry, following: dict[str, Any]
) -> None:
    """Let every leaf that the next call names take its value from there."""
    table = tools.KINDS.get(str(main.raw.get("kind")))
    aliases = table.aliases if table is not None else {}
    for key, value in following.items():
        field = _find_field(main, key, aliases)
        place = (*entry.build_key_path("next_call"), key)
        try:
            main.raw[field] = _write_default(main.raw.get(field), value, ("iter.next_call", key))
        except NotAnExpressionError as problem:
            reading.report_problem(
                "E104",
                place,
                f"the next call cannot change '{key}': {problem}",
                hint="write the field as one {{ … }}",
            )


def _find_field(main: PlacedTask, key: str, aliases: dict[str, str]) -> str:
    """Find the field of the task that a key of the next call means, moving it up from `spec`."""
    raw = main.raw
    alias = aliases.get(key, key)
    if alias in ("args", "with"):
        alias = "input"
    written_key = next((entry for entry in raw if aliases.get(entry, entry) == alias), None)
    spec = raw.get("spec")
    if written_key is None and isinstance(spec, dict):
        inner = next((entry for entry in spec if aliases.get(entry, entry) == alias), None)
        if inner is not None:
            raw["spec"] = {name: item for name, item in spec.items() if name != inner}
            raw[alias] = spec[inner]
            main.moves[(alias,)] = (*main.path, "spec", inner)
    return written_key or alias


def _write_default(original: Any, value: Any, keys: tuple[str, ...]) -> Any:
    if isinstance(value, dict) and value and (original is None or isinstance(original, dict)):
        written_value = original or {}
        inner = {
            key: _write_default(written_value.get(key), item, (*keys, key))
            for key, item in value.items()
        }
        return {**written_value, **inner}
    root, *inner_keys = keys
    path = root
    for key in inner_keys:
        path = template_renames.append_key(path, key)
    return "{{ " + path + " | default(" + template_renames.write_literal(original) + ") }}"


def build_page_task(
    reading: DocumentReader,
    main: PlacedTask,
    entries: list[RetryEntry],
    *,
    path: Path,
    is_last: bool,
) -> PlacedTask:
    """Write the task that decides whether the main task is called again."""
    to = {
        **map_response_names(main.raw, collects=hides_response_data(entries)),
        "attempt": "iter.calls",
    }
    rules: list[dict[str, Any]] = []
    moves: dict[Path, Path] = {}
    for index, entry in enumerate(entries):
        rules.append(_build_repeat_rule(reading, entry, to, target=main.task_name))
        at: Path = ("spec", "policy", "rules", index)
        moves[at] = entry.path
        moves[(*at, "when")] = entry.build_key_path("when")
        moves[(*at, "then", "set", "iter.next_call")] = entry.build_key_path("next_call")
        moves[(*at, "then", "on_bound")] = entry.build_key_path("on_bound")
    rules.append({"else": {"then": {"do": "break" if is_last else "continue"}}})
    raw = {"name": f"{main.task_name}__page", "kind": "noop", "spec": {"policy": {"rules": rules}}}
    return PlacedTask(raw=raw, path=path, moves=moves)


def _build_repeat_rule(
    reading: DocumentReader, entry: RetryEntry, to: dict[str, str], *, target: str
) -> dict[str, Any]:
    when = entry.when_condition
    try:
        if isinstance(when, str):
            when = template_renames.rename_in_condition(when, to)
        condition = template_renames.extract_condition(when)
        bound = template_renames.write_literal(_find_bound(entry))
    except NotAnExpressionError as problem:
        retry.refuse_condition(reading, entry, problem)
        condition, bound = "true", str(REPEATS_DEFAULT)
    then: dict[str, Any] = {"do": "jump", "to": target}
    delay = retry.read_waits(reading, entry).get("delay")
    if delay is not None:
        then["delay"] = delay
    if entry.raw.get("on_bound") is not None:
        then["on_bound"] = entry.raw["on_bound"]
    following = entry.raw.get("next_call")
    if isinstance(following, dict) and following:
        then["set"] = {"iter.next_call": template_renames.rename_names_within(following, to)}
    return {"when": "{{ (" + condition + ") and iter.calls < " + bound + " }}", "then": then}


def _find_bound(entry: RetryEntry) -> Any:
    name = next((key for key in _BOUNDS if entry.raw.get(key) is not None), None)
    if name is None:
        return REPEATS_DEFAULT
    value = entry.raw[name]
    if coercion.is_template(value):
        return "{{ (" + template_renames.extract_expression(value) + ") }}"
    bound = coercion.coerce_integer(value)
    if bound is None:
        raise NotAnExpressionError(f"{name} is not a whole number")
    return bound
