"""What a playbook would do: its graph, its stages, its needs; nothing is executed."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from noetl_contracts import codec
from noetl_playbook.model import coercion
from noetl_playbook.model.coercion import is_template
from noetl_playbook.model.playbook import Arc, Frame, LoopSpec, Playbook, Step, Task
from noetl_playbook.plan import WorkflowGraph, is_failure_aware, is_implicit
from noetl_playbook.templates.expressions import TemplateError, compile_value
from noetl_playbook.templates.static_values import merge_inputs, resolve_static_value


class PlanArc(msgspec.Struct, frozen=True, kw_only=True):
    """Where a step leads, and when."""

    step: str
    on: str | None = None
    when: str | None = None
    is_implicit: bool = False
    is_failure_aware: bool = False


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """How a loop or reduce runs; a number that depends on the run is absent.

    `units` counts items or rows, `frames` counts what is dispatched.
    """

    kind: str
    mode: str
    max_in_flight: int | str | float
    units: int | None = None
    frames: int | None = None
    frame: dict[str, Any] | None = None
    sources: tuple[str, ...] = ()


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step, its tasks, and what they need."""

    step: str
    tools: tuple[str, ...]
    stage: Stage | None
    arcs: tuple[PlanArc, ...]
    is_reachable: bool
    is_join: bool
    is_in_cycle: bool
    credentials: tuple[str, ...]
    keychain: tuple[str, ...]
    playbooks: tuple[str, ...]


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """The whole playbook."""

    path: str
    name: str
    entry: str
    final: str | None
    steps: tuple[PlanStep, ...]
    cycles: tuple[tuple[str, ...], ...]
    unreachable: tuple[str, ...]
    tools: tuple[str, ...]
    credentials: tuple[str, ...]
    keychain: tuple[str, ...]
    playbooks: tuple[str, ...]


def build_outline(playbook: Playbook, *, given: Mapping[str, Any] | None = None) -> Outline:
    """Describe a playbook, with inputs where they are given."""
    graph = WorkflowGraph.from_playbook(playbook)
    workload = merge_inputs(playbook.workload, given or {})
    arc_counts = Counter(arc.step for arcs in graph.arcs.values() for arc in arcs)
    cycles = tuple(tuple(item) for item in graph.list_cycles())
    looping = frozenset(name for cycle in cycles for name in cycle)
    reachable_steps = graph.list_reachable(graph.entry) | {graph.entry}
    steps = tuple(
        _outline_step(
            playbook,
            step,
            graph,
            workload,
            is_reachable=step.step in reachable_steps,
            is_join=arc_counts[step.step] > 1,
            is_in_cycle=step.step in looping,
        )
        for step in playbook.workflow
    )
    of_entries = list_keychain_credentials(playbook, workload)
    return Outline(
        path=playbook.metadata.path,
        name=playbook.metadata.name,
        entry=graph.entry,
        final=graph.final,
        steps=steps,
        cycles=cycles,
        unreachable=tuple(step.step for step in steps if not step.is_reachable),
        tools=_unite_sorted(step.tools for step in steps),
        credentials=_unite_sorted([*(step.credentials for step in steps), of_entries]),
        keychain=_unite_sorted(step.keychain for step in steps),
        playbooks=_unite_sorted(step.playbooks for step in steps),
    )


def _unite_sorted(parts: Any) -> tuple[str, ...]:
    return tuple(sorted({item for part in parts for item in part}))


def _outline_step(
    playbook: Playbook,
    step: Step,
    graph: WorkflowGraph,
    workload: Mapping[str, Any],
    *,
    is_reachable: bool,
    is_join: bool,
    is_in_cycle: bool,
) -> PlanStep:
    requirements = find_step_requirements(playbook, step, workload)
    return PlanStep(
        step=step.step,
        tools=requirements.tools,
        stage=_outline_stage(step, workload),
        arcs=tuple(_outline_arc(step, arc) for arc in graph.arcs[step.step]),
        is_reachable=is_reachable,
        is_join=is_join,
        is_in_cycle=is_in_cycle,
        credentials=requirements.credentials,
        keychain=requirements.keychain,
        playbooks=requirements.playbooks,
    )


def _outline_arc(step: Step, arc: Arc) -> PlanArc:
    when = arc.when if arc.when is None or isinstance(arc.when, str) else str(arc.when).lower()
    return PlanArc(
        step=arc.step,
        on=arc.on,
        when=when,
        is_implicit=is_implicit(step),
        is_failure_aware=is_failure_aware(arc, step=step.step),
    )


def _outline_stage(step: Step, workload: Mapping[str, Any]) -> Stage | None:
    if step.reduce is not None:
        spec = step.reduce.spec
        return Stage(
            kind="reduce",
            mode=spec.mode,
            max_in_flight=spec.max_in_flight,
            frame=_frame_policy(spec.frame),
            sources=step.reduce.from_,
        )
    if step.loop is None:
        return None
    loop = step.loop.spec
    units = (
        None
        if step.loop.cursor is not None
        else _count_units(resolve_static_value(step.loop.in_, workload))
    )
    return Stage(
        kind={"fanout": "fanout", "cursor": "queue"}.get(loop.mode, "loop"),
        mode=loop.mode,
        max_in_flight=resolve_static_value(
            loop.max_in_flight, workload, otherwise=loop.max_in_flight
        ),
        units=units,
        frames=None if units is None else _count_frames(loop, units, workload),
        frame=None if loop.frame is None else _frame_policy(loop.frame),
    )


def _frame_policy(frame: Frame) -> dict[str, Any]:
    policy_fields: dict[str, Any] = {name: getattr(frame, name) for name in frame.__struct_fields__}
    return policy_fields


def _count_units(collection: Any) -> int | None:
    """Count what a loop would iterate over, by the rules of its source."""
    match collection:
        case bool():
            return None
        case int():
            return collection if collection >= 0 else None
        case {"rows": list() as rows}:
            return len(rows)
        case list() | dict():
            return len(collection)
        case str() if collection.lstrip().startswith("["):
            try:
                items = codec.decode_json(collection)
            except msgspec.DecodeError:
                return None
            return len(items) if isinstance(items, list) else None
        case _:
            return None


def _count_frames(spec: LoopSpec, units: int, workload: Mapping[str, Any]) -> int | None:
    """Count the units of work that are dispatched."""
    if spec.mode == "fanout" and spec.fanout is not None:
        partitions = coercion.coerce_integer(resolve_static_value(spec.fanout.partitions, workload))
        if spec.fanout.partitions is not None:
            return None if partitions is None else min(partitions, units)
        return _divide_up(units, resolve_static_value(spec.fanout.shard_size, workload))
    if spec.mode == "chunked" and spec.frame is not None:
        return _divide_up(units, resolve_static_value(spec.frame.max_rows, workload))
    return units


def _divide_up(units: int, size: Any) -> int | None:
    unit_size = coercion.coerce_integer(size)
    return None if unit_size is None or unit_size < 1 else -(-units // unit_size)


class StepRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """What one step needs, by name; what only the run decides stands as its template."""

    tools: tuple[str, ...]
    credentials: tuple[str, ...]
    keychain: tuple[str, ...]
    playbooks: tuple[str, ...]


def find_step_requirements(
    playbook: Playbook, step: Step, workload: Mapping[str, Any]
) -> StepRequirements:
    """Gather what a step needs."""
    tasks = [_merge_workbook_entry(playbook, task) for task in step.tool]
    entries = {entry.name for entry in playbook.keychain}
    credential_names = {name for task in tasks for name in _list_task_credentials(task, workload)}
    if step.loop is not None and step.loop.cursor is not None:
        credential_names |= set(_list_auth_credentials(step.loop.cursor.auth, workload))
    if step.output is not None and step.output.store.credential is not None:
        credential_names |= {_resolve_text(step.output.store.credential, workload)}
    keychain_names = _list_keychain_names(msgspec.to_builtins(step)) | {
        name for task in tasks for name in _list_keychain_names(msgspec.to_builtins(task))
    }
    children = {
        _resolve_text(task.fields["path"], workload)
        for task in tasks
        if task.kind == "playbook"
        if "path" in task.fields
    }
    return StepRequirements(
        tools=tuple(dict.fromkeys(task.kind for task in tasks)),
        credentials=tuple(sorted(credential_names - entries)),
        keychain=tuple(sorted(keychain_names | (credential_names & entries))),
        playbooks=tuple(sorted(children)),
    )


def list_keychain_credentials(playbook: Playbook, workload: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the credentials that the keychain's entries are made from."""
    keychain_credentials: set[str] = set()
    for entry in playbook.keychain:
        keychain_credentials |= set(_list_auth_credentials(entry.fields.get("auth"), workload))
        if entry.kind in ("credential", "postgres_credential"):
            keychain_credentials.add(
                _resolve_text(entry.fields.get("credential", entry.name), workload)
            )
    return tuple(sorted(keychain_credentials))


def _merge_workbook_entry(playbook: Playbook, task: Task) -> Task:
    """Put a workbook call on the entry that it calls."""
    if task.kind != "workbook":
        return task
    name = task.fields.get("task", task.name)
    entry = next((item.tool for item in playbook.workbook if item.name == name), None)
    if entry is None:
        return task
    auth = entry.auth if task.auth is None else task.auth
    return msgspec.structs.replace(entry, fields={**entry.fields, **task.fields}, auth=auth)


def _list_task_credentials(task: Task, workload: Mapping[str, Any]) -> Iterator[str]:
    yield from _list_auth_credentials(task.auth, workload)
    for side in ("source", "target"):
        block = task.fields.get(side)
        if isinstance(block, dict):
            yield from _list_auth_credentials(block.get("auth"), workload)
    inputs = task.fields.get("inputs")
    for source in inputs.values() if isinstance(inputs, dict) else ():
        if isinstance(source, dict):
            yield from _list_auth_credentials(source.get("auth"), workload)
    if task.output is not None and task.output.store.credential is not None:
        yield _resolve_text(task.output.store.credential, workload)


def _list_auth_credentials(auth: Any, workload: Mapping[str, Any]) -> Iterator[str]:
    """Name the stored credentials of an `auth` in any form."""
    if isinstance(auth, str):
        yield _resolve_text(auth, workload)
        return
    if not isinstance(auth, dict):
        return
    for key in ("credential", "key"):
        if isinstance(auth.get(key), str):
            yield _resolve_text(auth[key], workload)
            return
    for inner in auth.values():
        if isinstance(inner, dict):
            yield from _list_auth_credentials(inner, workload)


def _resolve_text(value: Any, workload: Mapping[str, Any]) -> str:
    static_value = resolve_static_value(value, workload)
    return static_value if isinstance(static_value, str) else str(value)


def _list_keychain_names(value: Any) -> set[str]:
    """Name the keychain entries that templates read."""
    if isinstance(value, dict | list | tuple):
        items = value.values() if isinstance(value, dict) else value
        return {name for item in items for name in _list_keychain_names(item)}
    if not is_template(value):
        return set()
    try:
        paths = compile_value(value).paths
    except TemplateError:
        return set()
    parts = (path.split(".") for path in paths)
    return {part[1] for part in parts if part[0] == "keychain" and len(part) > 1}
