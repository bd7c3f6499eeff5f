"""Reads the steps of a workflow, and where each goes next."""

from typing import Any

import msgspec

from noetl_playbook import names
from noetl_playbook.loops import read_loop
from noetl_playbook.model import Arc, Next, NextSpec, Step, StepSpec, Task
from noetl_playbook.older import refuse_unread, rename
from noetl_playbook.policies import gather_sets, read_output, read_set, rename_older_when
from noetl_playbook.problems import Path, Segment
from noetl_playbook.reading import Reading, shown
from noetl_playbook.tasks import misplaced_fields, read_tasks

STEPS_MAX = 2_000
ARCS_MAX = 200
_READ_HERE = frozenset(
    {"spec", "loop", "reduce", "tool", "output", "output_select", "set", "next", "description"}
)
_OLDER_STEP = {"name": "step", "args": "input", "with": "input", "vars": "set_vars"}


def read_workflow(reading: Reading, value: Any, path: Path, *, loop_mode: Any) -> list[Step]:
    """Read every step."""
    items = reading.listed(value, path)
    if not items:
        reading.report("E102", path, "the workflow has no steps")
    if len(items) > STEPS_MAX:
        reading.report("E601", path, f"a workflow has at most {STEPS_MAX} steps")
        return []
    steps: list[Step] = []
    for index, item in enumerate(items):
        step = read_step(reading, item, (*path, index), loop_mode=loop_mode)
        if step is not None:
            steps.append(step)
            reading.step_indices.append(index)
    return steps


def read_step(reading: Reading, value: Any, path: Path, *, loop_mode: Any) -> Step | None:
    """Read one step."""
    if not isinstance(value, dict):
        reading.wrong(path, "a step", value)
        return None
    raw = _as_canonical(reading, value, path)
    task_fields = misplaced_fields(reading, raw, path)
    found = reading.fields(Step, raw, path, other=_READ_HERE | (task_fields & raw.keys()))
    name = found.get("step")
    if name is None:
        reading.report("E104", path, "a step needs 'step', its name")
        return None
    if not names.is_step_name(name):
        reading.report("E201", (*path, "step"), f"{shown(name)} is not a step name")
    spec = reading.mapping(raw.get("spec"), (*path, "spec")) or {}
    found["spec"] = _read_spec(reading, spec, (*path, "spec"))
    found["loop"] = _read_loop(reading, raw, path, spec=spec, loop_mode=loop_mode)
    found["reduce"] = _read_reduce(reading, raw, path)
    found["tool"] = _with_input(
        read_tasks(reading, raw, path, step_name=name), found.get("input", {})
    )
    found["output"] = read_output(reading, raw, path)
    found["set"] = read_set(reading, raw.get("set"), (*path, "set"), scope="step")
    found["next"] = read_next(reading, raw, path)
    step: Step | None = reading.build(Step, found, path)
    return step


def _as_canonical(reading: Reading, value: dict[str, Any], path: Path) -> dict[str, Any]:
    """Spell a step's older keys as the canonical ones."""
    renames = {old: new for old, new in _OLDER_STEP.items() if old != "name" or "step" not in value}
    if "type" in value and "tool" not in value:
        renames["type"] = "tool"
    raw = rename(reading, refuse_unread(reading, value, path), path, renames=renames)
    raw = gather_sets(reading, raw, path)
    if "timeout" in raw:
        raw = _timeout_into_spec(reading, raw, path)
    raw = rename_older_when(reading, raw, path) if "condition" in raw else raw
    return _when_into_admit(reading, raw, path) if "when" in raw else raw


def _timeout_into_spec(reading: Reading, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    reading.report(
        "W902",
        (*path, "timeout"),
        "a step's timeout belongs under spec",
        of_key=True,
        replacement="spec: {timeout: …}",
    )
    reading.move((*path, "timeout"), (*path, "spec", "timeout"))
    spec = raw.get("spec") if isinstance(raw.get("spec"), dict) else {}
    kept = {key: item for key, item in raw.items() if key != "timeout"}
    return {**kept, "spec": {"timeout": raw["timeout"], **(spec or {})}}


def _when_into_admit(reading: Reading, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    reading.report(
        "W902",
        (*path, "when"),
        "a step's 'when' is an older form",
        of_key=True,
        replacement="spec: {policy: {admit: {rules: [{when: …, then: {allow: true}},"
        " {else: {then: {allow: false}}}]}}}",
    )
    spec = dict(raw["spec"]) if isinstance(raw.get("spec"), dict) else {}
    policy = dict(spec["policy"]) if isinstance(spec.get("policy"), dict) else {}
    policy.setdefault(
        "admit",
        {
            "rules": [
                {"when": raw["when"], "then": {"allow": True}},
                {"else": {"then": {"allow": False}}},
            ]
        },
    )
    reading.move((*path, "when"), (*path, "spec", "policy", "admit", "rules", 0, "when"))
    spec["policy"] = policy
    return {**{key: item for key, item in raw.items() if key != "when"}, "spec": spec}


def _read_spec(reading: Reading, spec: dict[str, Any], path: Path) -> StepSpec:
    found = reading.fields(StepSpec, spec, path, other=("fanout", "loop_mode", "next_mode"))
    read = StepSpec(**found)
    if read.timeout is not None and read.policy.lifecycle.timeout_s is None:
        lifecycle = msgspec.structs.replace(read.policy.lifecycle, timeout_s=read.timeout)
        policy = msgspec.structs.replace(read.policy, lifecycle=lifecycle)
        return msgspec.structs.replace(read, policy=policy)
    return read


def _read_loop(
    reading: Reading, raw: dict[str, Any], path: Path, *, spec: dict[str, Any], loop_mode: Any
) -> Any:
    if raw.get("loop") is None:
        return None
    if raw.get("reduce") is not None:
        reading.report(
            "E501", (*path, "reduce"), "a step has either 'loop' or 'reduce'", of_key=True
        )
    mode = spec.get("loop_mode", loop_mode)
    return read_loop(reading, raw["loop"], (*path, "loop"), step_spec=spec, loop_mode=mode)


def _read_reduce(reading: Reading, raw: dict[str, Any], path: Path) -> Any:
    if raw.get("reduce") is None:
        return None
    found = reading.fields(Step, {"reduce": raw["reduce"]}, path)
    return found.get("reduce")


def _with_input(tasks: tuple[Task, ...], defaults: dict[str, Any]) -> tuple[Task, ...]:
    """Give every task the step's input where it has none of its own."""
    if not defaults:
        return tasks
    return tuple(msgspec.structs.replace(task, input={**defaults, **task.input}) for task in tasks)


def read_next(reading: Reading, step: dict[str, Any], path: Path) -> Next | None:
    """Read where a step goes, in any spelling."""
    value = step.get("next")
    here = (*path, "next")
    if value is None:
        return None
    if isinstance(value, str | list):
        return _read_older_next(reading, step, value, here)
    raw = reading.mapping(value, here)
    if raw is None:
        return None
    for key in raw:
        if key not in ("spec", "arcs"):
            reading.unknown((*here, key), ("spec", "arcs"))
    spec_raw = reading.mapping(raw.get("spec"), (*here, "spec")) or {}
    spec = NextSpec(**reading.fields(NextSpec, spec_raw, (*here, "spec"), other=("policy",)))
    items = reading.listed(raw.get("arcs"), (*here, "arcs"))
    if len(items) > ARCS_MAX:
        reading.report("E601", (*here, "arcs"), f"a step has at most {ARCS_MAX} arcs")
        items = items[:ARCS_MAX]
    read = (read_arc(reading, item, (*here, "arcs", i)) for i, item in enumerate(items))
    return Next(spec=spec, arcs=tuple(arc for arc in read if arc is not None))


def read_arc(reading: Reading, value: Any, path: Path) -> Arc | None:
    """Read one arc."""
    if not isinstance(value, dict):
        reading.wrong(path, "an arc", value)
        return None
    raw = rename_older_when(reading, value, path)
    for older in ("args", "data", "payload", "with", "input"):
        if older in raw:
            raw = _arc_values_into_set(reading, raw, path, older=older)
    raw = gather_sets(reading, raw, path)
    found = reading.fields(Arc, raw, path, other=("set",))
    found["set"] = read_set(reading, raw.get("set"), (*path, "set"), scope="step")
    arc: Arc | None = reading.build(Arc, found, path)
    return arc


def _arc_values_into_set(
    reading: Reading, raw: dict[str, Any], path: Path, *, older: str
) -> dict[str, Any]:
    reading.report(
        "W902",
        (*path, older),
        f"'{older}' on an arc is an older form",
        of_key=True,
        replacement="set: {ctx.name: …}",
    )
    block = dict(reading.mapping(raw.get("set"), (*path, "set")) or {})
    for name, item in (reading.mapping(raw[older], (*path, older)) or {}).items():
        block.setdefault(f"ctx.{name}", item)
        reading.move((*path, older, name), (*path, "set", f"ctx.{name}"))
    return {**{key: item for key, item in raw.items() if key != older}, "set": block}


def _read_older_next(reading: Reading, step: dict[str, Any], value: Any, path: Path) -> Next | None:
    """Read `next: a`, `next: [a, …]` and lists of conditional targets."""
    reading.report(
        "W903",
        path,
        "'next' as text or a list is an older form",
        replacement="next: {spec: {mode: …}, arcs: [{step: …}]}",
    )
    items = [value] if isinstance(value, str) else value
    arcs: list[Arc] = []
    for index, item in enumerate(items):
        suffix: tuple[Segment, ...] = () if isinstance(value, str) else (index,)
        arcs += _older_arcs(reading, item, (*path, *suffix))
    spec = step.get("spec")
    written = spec.get("next_mode") if isinstance(spec, dict) else None
    is_inclusive = all(arc.when is None and arc.on is None for arc in arcs)
    if written in ("exclusive", "inclusive"):
        is_inclusive = written == "inclusive"
    mode = NextSpec(mode="inclusive" if is_inclusive else "exclusive")
    return Next(spec=mode, arcs=tuple(arcs))


def _older_arcs(reading: Reading, item: Any, path: Path) -> list[Arc]:
    if isinstance(item, str):
        return [Arc(step=item)]
    if not isinstance(item, dict):
        reading.wrong(path, "a step name or an arc", item)
        return []
    if "then" not in item and "else" not in item:
        arc = read_arc(reading, item, path)
        return [] if arc is None else [arc]
    item = rename_older_when(reading, item, path)
    branch = "then" if "then" in item else "else"
    when = item.get("when") if branch == "then" else None
    targets = item[branch] if isinstance(item[branch], list) else [item[branch]]
    arcs: list[Arc] = []
    for index, target in enumerate(targets):
        raw = {"step": target} if isinstance(target, str) else target
        if isinstance(raw, dict) and when is not None:
            raw = {"when": when, **raw}
        arc = read_arc(reading, raw, (*path, branch, index))
        arcs += [] if arc is None else [arc]
    return arcs
