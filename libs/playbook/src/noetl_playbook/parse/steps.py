"""Reads the steps of a workflow, and where each goes next."""

from typing import Any

import msgspec

from noetl_playbook.compat import legacy_keys
from noetl_playbook.compat.arcs import rename_arc_keys, rewrite_next
from noetl_playbook.compat.step import rewrite_step
from noetl_playbook.compat.task import REPEAT_FORMS
from noetl_playbook.model import language_names
from noetl_playbook.model.playbook import Arc, Next, NextSpec, Step, StepSpec, Task
from noetl_playbook.parse.tasks import read_tasks, report_misplaced_fields
from noetl_playbook.sections import loop_bounds
from noetl_playbook.sections.auth_fields import check_auth
from noetl_playbook.sections.limits import check_pool_name
from noetl_playbook.sections.loops import read_loop
from noetl_playbook.sections.policies import (
    read_output,
    read_set_block,
)
from noetl_playbook.source.document_reader import DocumentReader, describe_value
from noetl_playbook.source.problems import Path

STEPS_MAX = 20_000
ARCS_MAX = 200
_READ_HERE = frozenset(
    {"spec", "loop", "reduce", "tool", "output", "output_select", "set", "next", "description"}
)


def read_workflow(reading: DocumentReader, value: Any, path: Path, *, loop_mode: Any) -> list[Step]:
    """Read every step."""
    items = reading.read_list(value, path)
    if not items:
        reading.report_problem("E102", path, "the workflow has no steps")
    if len(items) > STEPS_MAX:
        reading.report_problem("E601", path, f"a workflow has at most {STEPS_MAX} steps")
        return []
    steps: list[Step] = []
    for index, item in enumerate(items):
        step = read_step(reading, item, (*path, index), loop_mode=loop_mode)
        if step is not None:
            steps.append(step)
            reading.step_indices.append(index)
    return steps


def read_step(reading: DocumentReader, value: Any, path: Path, *, loop_mode: Any) -> Step | None:
    """Read one step."""
    if not isinstance(value, dict):
        reading.report_wrong_type(path, "a step", value)
        return None
    raw = legacy_keys.rename_step_keys(reading, value, path)
    raw_name = reading.read_text(raw.get("step"), (*path, "step"))
    if raw_name is not None:
        raw = rewrite_step(reading, raw, path, step=raw_name)
    task_fields = report_misplaced_fields(reading, raw, path)
    fields = reading.read_fields(
        Step, raw, path, other=_READ_HERE | (task_fields & raw.keys()), hinted=REPEAT_FORMS
    )
    name = fields.get("step")
    if name is None:
        reading.report_problem("E104", path, "a step needs 'step', its name")
        return None
    if not language_names.is_step_name(name):
        reading.report_problem(
            "E201", (*path, "step"), f"{describe_value(name)} is not a step name"
        )
    if "desc" not in fields and isinstance(raw.get("tool"), dict | list | None):
        reading.record_move((*path, "description"), (*path, "desc"))
        fields |= reading.read_fields(Step, {"desc": raw.get("description")}, path)
    spec = reading.read_mapping(raw.get("spec"), (*path, "spec")) or {}
    fields["spec"] = _read_step_spec(reading, spec, (*path, "spec"))
    fields["loop"] = _read_step_loop(reading, raw, path, spec=spec, loop_mode=loop_mode)
    fields["reduce"] = _read_step_reduce(reading, raw, path)
    fields["tool"] = _fill_input(
        read_tasks(reading, raw, path, step_name=name), fields.pop("input", {})
    )
    fields["output"] = read_output(reading, raw, path)
    fields["set"] = read_set_block(reading, raw.get("set"), (*path, "set"), scope="step")
    fields["next"] = read_next(reading, raw, path)
    step: Step | None = reading.build_struct(Step, fields, path)
    return step


def _read_step_spec(reading: DocumentReader, spec: dict[str, Any], path: Path) -> StepSpec:
    fields = reading.read_fields(StepSpec, spec, path, other=("fanout", "loop_mode", "next_mode"))
    step_spec = StepSpec(**fields)
    check_pool_name(reading, step_spec.pool, path)
    loop_bounds.check_default_mode(reading, spec.get("loop_mode"), (*path, "loop_mode"))
    _check_admission(reading, (*path, "policy", "admit"))
    for index, name in enumerate(step_spec.policy.emit.events):
        if not language_names.is_event_name(name):
            reading.report_problem(
                "E104",
                (*path, "policy", "emit", "events", index),
                f"{describe_value(name)} is not an event name: "
                "use letters, digits, '_', '-' and '.'",
            )
    for index, emitted in enumerate(step_spec.policy.emit.objects):
        if not language_names.is_event_name(emitted.type):
            reading.report_problem(
                "E104",
                (*path, "policy", "emit", "objects", index, "type"),
                f"{describe_value(emitted.type)} is no type of objects: "
                "use letters, digits, '_', '-' "
                "and '.'",
            )
    if step_spec.timeout is not None and step_spec.policy.lifecycle.timeout_s is None:
        lifecycle = msgspec.structs.replace(step_spec.policy.lifecycle, timeout_s=step_spec.timeout)
        policy = msgspec.structs.replace(step_spec.policy, lifecycle=lifecycle)
        return msgspec.structs.replace(step_spec, policy=policy)
    return step_spec


def _check_admission(reading: DocumentReader, path: Path) -> None:
    if reading.find_written((*path, "rules")) == []:
        reading.report_problem(
            "E104",
            (*path, "rules"),
            "the list of admission rules is empty",
            hint="write a rule, or leave admit out to let every run in",
        )


def _read_step_loop(
    reading: DocumentReader,
    raw: dict[str, Any],
    path: Path,
    *,
    spec: dict[str, Any],
    loop_mode: Any,
) -> Any:
    if raw.get("loop") is None:
        return None
    if raw.get("reduce") is not None:
        reading.report_problem(
            "E501", (*path, "reduce"), "a step has either 'loop' or 'reduce'", of_key=True
        )
    mode = spec.get("loop_mode", loop_mode)
    inner_path = (*path, "loop")
    rewritten = legacy_keys.rewrite_loop(reading, raw["loop"], inner_path)
    loop = read_loop(reading, rewritten, inner_path, step_spec=spec, loop_mode=mode)
    if loop is None:
        return None
    if loop.cursor is not None:
        check_auth(reading, loop.cursor.auth, (*inner_path, "cursor", "auth"))
    loop_bounds.check_mode_blocks(reading, loop, inner_path)
    _check_engine_of(reading, inner_path)
    return loop_bounds.clamp_loop(reading, loop, inner_path)


def _read_step_reduce(reading: DocumentReader, raw: dict[str, Any], path: Path) -> Any:
    if raw.get("reduce") is None:
        return None
    fields = reading.read_fields(Step, {"reduce": raw["reduce"]}, path)
    _check_engine_of(reading, (*path, "reduce"))
    return fields.get("reduce")


def _check_engine_of(reading: DocumentReader, path: Path) -> None:
    inner_path = (*path, "spec", "frame", "engine")
    loop_bounds.check_frame_engine(reading, reading.find_written(inner_path), inner_path)


def _fill_input(tasks: tuple[Task, ...], defaults: dict[str, Any]) -> tuple[Task, ...]:
    """Give every task the step's input where it has none of its own."""
    if not defaults:
        return tasks
    return tuple(msgspec.structs.replace(task, input={**defaults, **task.input}) for task in tasks)


def read_next(reading: DocumentReader, step: dict[str, Any], path: Path) -> Next | None:
    """Read where a step goes, in any spelling."""
    inner_path = (*path, "next")
    value = rewrite_next(reading, step, path).get("next")
    if value is None:
        return None
    raw = reading.read_mapping(value, inner_path)
    if raw is None:
        return None
    for key in raw:
        if key not in ("spec", "arcs"):
            reading.report_unknown((*inner_path, key), ("spec", "arcs"))
    spec_path = (*inner_path, "spec")
    spec_raw = reading.read_mapping(raw.get("spec"), spec_path) or {}
    spec = NextSpec(**reading.read_fields(NextSpec, spec_raw, spec_path, other=("policy",)))
    items = reading.read_list(raw.get("arcs"), (*inner_path, "arcs"))
    if len(items) > ARCS_MAX:
        reading.report_problem("E601", (*inner_path, "arcs"), f"a step has at most {ARCS_MAX} arcs")
        items = items[:ARCS_MAX]
    arcs = (read_arc(reading, item, (*inner_path, "arcs", i)) for i, item in enumerate(items))
    return Next(spec=spec, arcs=tuple(arc for arc in arcs if arc is not None))


def read_arc(reading: DocumentReader, value: Any, path: Path) -> Arc | None:
    """Read one arc."""
    if not isinstance(value, dict):
        reading.report_wrong_type(path, "an arc", value)
        return None
    raw = rename_arc_keys(reading, value, path)
    fields = reading.read_fields(Arc, raw, path, other=("set",))
    fields["set"] = read_set_block(reading, raw.get("set"), (*path, "set"), scope="step")
    arc: Arc | None = reading.build_struct(Arc, fields, path)
    return arc
