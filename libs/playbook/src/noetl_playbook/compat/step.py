"""A step's short forms and older constructs, rewritten as its pipeline, its loop and its arcs."""

from typing import Any

from msgspec import Struct, field

from noetl_playbook.compat import arcs, case, legacy_keys, placed_tasks, repeat, retry, sink
from noetl_playbook.compat.placed_tasks import (
    PlacedTask,
    insert_gates,
    map_response_names,
    write_pipeline,
)
from noetl_playbook.compat.retry import RetryEntry
from noetl_playbook.compat.task import STRUCTURAL, prepend_error_rules, rewrite_task
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path, write_flow

_OF_STEP = ("case", "retry", "pagination", "sink", "save")
_OF_LOOP = ("retry", "pagination", "sink", "save")
_REPLACED_KEYS = ("loop", "tool", "next")

Construct = tuple[str, Any, Path]


class _TaskPlan(Struct, kw_only=True):
    """What the constructs of a step ask for, around one task."""

    main: PlacedTask
    repeats: list[RetryEntry] = field(default_factory=list)
    failing: list[RetryEntry] = field(default_factory=list)
    sinks: list[tuple[Any, Path, str]] = field(default_factory=list)


def rewrite_step(
    reading: DocumentReader, raw: dict[str, Any], path: Path, *, step: str
) -> dict[str, Any]:
    """Give a step without `case`, `retry`, `pagination`, `sink`, `save` and `iterator`."""
    on_step = [(key, raw[key], (*path, key)) for key in _OF_STEP if key in raw]
    loop = raw.get("loop")
    if isinstance(loop, dict):
        on_step += [(key, loop[key], (*path, "loop", key)) for key in _OF_LOOP if key in loop]
    if not on_step and not _has_structure(raw.get("tool")):
        return raw
    placed = placed_tasks.list_placed_tasks(reading, raw, path, step_name=step)
    spelled_tasks: list[PlacedTask] = []
    for task in placed:
        rewritten_task = rewrite_task(reading, task.raw, task.path, defaults=raw.get("input"))
        if rewritten_task is not None:
            spelled_tasks.append(PlacedTask(raw=rewritten_task, path=task.path))
    of_tasks = [
        (key, task.raw[key], (*task.path, key))
        for task in spelled_tasks
        for key in STRUCTURAL
        if key in task.raw
    ]
    fields = {
        key: item for key, item in raw.items() if key not in (*_OF_STEP, *placed_tasks.BESIDE)
    }
    if isinstance(loop, dict):
        fields["loop"] = {key: item for key, item in loop.items() if key not in _OF_LOOP}
    if not isinstance(raw.get("tool"), str):
        beside = {key: item for key, item in raw.items() if key in placed_tasks.BESIDE}
        fields.update(beside)
    if not spelled_tasks:
        return {**fields, "tool": []} if placed else fields
    fields = _move_iterator(reading, fields, path, spelled_tasks)
    tasks, cases = _build_pipeline(reading, spelled_tasks, on_step, step=step)
    tasks = insert_gates(tasks)
    fields = arcs.rewrite_next(reading, fields, path)
    if len(tasks) > 1 and fields.get("loop") is None:
        cases.arcs = arcs.bind_response_to_main(
            cases.arcs,
            main=spelled_tasks[-1].raw,
            collects=repeat.hides_response_data(cases.entries),
        )
    following = arcs.prepend_arcs(fields.get("next"), cases.arcs)
    rewritten_step = {**fields, "tool": [task.raw for task in tasks]}
    if following is not None:
        rewritten_step["next"] = following
    _report_older_forms(reading, [*on_step, *of_tasks], rewritten_step, original_step=raw)
    write_pipeline(reading, tasks, (*path, "tool"))
    arcs.record_arc_moves(reading, path, cases.arcs, following=following)
    return rewritten_step


def _has_structure(tool: Any) -> bool:
    """Tell whether a task of a `tool` in any shape holds a construct that makes more tasks."""
    items = tool if isinstance(tool, list) else [tool]
    inner = [item for item in items if isinstance(item, dict)]
    inner += [entry for item in inner for entry in item.values() if isinstance(entry, dict)]
    return any(
        key in item and (key != "retry" or _can_repeat(item[key]))
        for item in inner
        for key in STRUCTURAL
    )


def _can_repeat(value: Any) -> bool:
    return isinstance(value, dict | list)


def _report_older_forms(
    reading: DocumentReader,
    constructs: list[Construct],
    rewritten_step: dict[str, Any],
    *,
    original_step: dict[str, Any],
) -> None:
    """Show for each older construct what the whole step says instead."""
    changed_sections = {
        key: rewritten_step[key]
        for key in _REPLACED_KEYS
        if rewritten_step.get(key) is not None and rewritten_step[key] != original_step.get(key)
    }
    for key, value, path in constructs:
        if _is_short_form(key, value):
            continue
        reading.report_problem(
            "W903",
            path,
            f"'{key}' is an older form",
            of_key=True,
            replacement=write_flow(changed_sections),
        )


def _is_short_form(key: str, value: Any) -> bool:
    """Tell whether a construct is a short form of today: a sink in a `retry` is an older one."""
    if key == "pagination":
        return True
    items = value if isinstance(value, list) else [value]
    return key == "retry" and not any(sink.has_sink(item) for item in items)


def _move_iterator(
    reading: DocumentReader, raw: dict[str, Any], path: Path, tasks: list[PlacedTask]
) -> dict[str, Any]:
    """Make the step's loop of the `iterator` of its only task."""
    for task in tasks:
        if "iterator" not in task.raw:
            continue
        inner_path = (*task.path, "iterator")
        value = reading.read_mapping(task.raw.pop("iterator"), inner_path)
        if len(tasks) > 1 or raw.get("loop") is not None:
            reading.report_problem(
                "E501",
                inner_path,
                "a task's iterator needs a step with one task and no loop",
                hint="write the step's loop",
            )
        elif value is not None:
            reading.record_move(inner_path, (*path, "loop"))
            loop_path = (*path, "loop")
            loop = legacy_keys.rewrite_iterator(reading, value, inner_path, loop_path)
            return {**raw, "loop": loop}
    return raw


def _build_pipeline(
    reading: DocumentReader, tasks: list[PlacedTask], on_step: list[Construct], *, step: str
) -> tuple[list[PlacedTask], case.RewrittenCase]:
    """Build the pipeline around the tasks; what the step says is about its last one."""
    plans = [_plan_task(reading, task) for task in tasks]
    last = plans[-1]
    cases = case.RewrittenCase()
    for key, value, path in on_step:
        match key:
            case "case":
                branches = case.list_branches(reading, value, path)
                cases = case.rewrite_branches(reading, branches, step=step, main=last.main)
                _add_entries(reading, plans, cases.entries)
            case "retry":
                _add_entries(reading, plans, retry.read_retry_entries(reading, value, path))
            case "pagination":
                _add_entries(reading, plans, retry.read_pagination(reading, value, path))
            case _:
                last.sinks.append((value, path, ""))
    pipeline: list[PlacedTask] = []
    for index, plan in enumerate(plans):
        is_last = index == len(plans) - 1 and not cases.tasks
        pipeline += _build_task_pipeline(reading, plan, step=step, is_last=is_last)
    pipeline += _spell_tasks(reading, cases.tasks)
    _number_sinks(pipeline, step=step)
    return pipeline, cases


def _number_sinks(tasks: list[PlacedTask], *, step: str) -> None:
    """Tell several sinks of a step apart: the second is `<step>_sink_2`."""
    sinks = [task for task in tasks if task.task_name == sink.name_sink(step)]
    for number, task in enumerate(sinks[1:], start=2):
        task.raw = {**task.raw, "name": f"{task.task_name}_{number}"}


def _plan_task(reading: DocumentReader, task: PlacedTask) -> _TaskPlan:
    """Take a task's own constructs off it."""
    plan = _TaskPlan(main=task)
    for key in ("retry", "pagination"):
        value = task.raw.pop(key, None)
        if key == "retry" and value is not None:
            plan.repeats += value
        elif value is not None:
            plan.repeats += retry.read_pagination(reading, value, (*task.path, key))
    for key in sink.KEYS:
        if key in task.raw:
            plan.sinks.append((task.raw.pop(key), (*task.path, key), ""))
    return plan


def _add_entries(
    reading: DocumentReader, plans: list[_TaskPlan], entries: list[RetryEntry]
) -> None:
    """Give error retries to every task, and repeats to the only one."""
    for entry in entries:
        if not entry.is_repeat:
            for plan in plans:
                plan.failing.append(entry)
        elif len(plans) == 1:
            plans[0].repeats.append(entry)
        else:
            reading.report_problem(
                "E104",
                entry.path,
                "a step with several tasks cannot be repeated",
                hint="write it on the task that is called again",
            )


def _build_task_pipeline(
    reading: DocumentReader, plan: _TaskPlan, *, step: str, is_last: bool
) -> list[PlacedTask]:
    """Build the pipeline of one task: the task, its sinks, and whether it is called again."""
    main = plan.main
    collected_path = next((repeat.find_collected_path(entry) for entry in plan.repeats), "")
    sinks = [*_list_sinks(plan.repeats), *plan.sinks]
    names = map_response_names(main.raw, collects=repeat.hides_response_data(plan.repeats))
    if plan.repeats:
        names["attempt"] = "iter.calls"
    sink_tasks: list[PlacedTask] = []
    for value, path, own_path in sinks:
        sink_task = sink.build_sink_task(
            reading,
            value,
            path,
            name=sink.name_sink(step),
            main=main.raw,
            collected_path=own_path or collected_path,
            names=names,
        )
        sink_tasks += [] if sink_task is None else [sink_task]
    sink_tasks = _spell_tasks(reading, sink_tasks)
    for task in (main, *sink_tasks):
        task.raw = prepend_error_rules(reading, task.raw, task.path, plan.failing)
    if plan.repeats:
        repeat.prepare_main_task(reading, main, plan.repeats)
        path = plan.repeats[0].path
        sink_tasks.append(
            repeat.build_page_task(reading, main, plan.repeats, path=path, is_last=is_last)
        )
    return [main, *sink_tasks]


def _list_sinks(entries: list[RetryEntry]) -> list[tuple[Any, Path, str]]:
    return [
        (entry.raw[key], entry.build_key_path(key), repeat.find_collected_path(entry))
        for entry in entries
        for key in sink.KEYS
        if entry.raw.get(key) is not None
    ]


def _spell_tasks(reading: DocumentReader, tasks: list[PlacedTask]) -> list[PlacedTask]:
    """Replace older spellings in tasks that were made from a construct."""
    placed_tasks: list[PlacedTask] = []
    for task in tasks:
        raw = rewrite_task(reading, task.raw, task.path)
        if raw is not None:
            task.raw = raw
            placed_tasks.append(task)
    return placed_tasks
