"""What a playbook would do: its graph, its stages, its needs; nothing is executed."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from noetl_contracts import codec
from noetl_playbook import coercion, needs
from noetl_playbook.given import known, merged
from noetl_playbook.model import Arc, Frame, LoopSpec, Playbook, Step
from noetl_playbook.plan import Graph, is_failure_aware, is_implicit


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


def outline_of(playbook: Playbook, *, given: Mapping[str, Any] | None = None) -> Outline:
    """Describe a playbook, with inputs where they are given."""
    graph = Graph.of(playbook)
    workload = merged(playbook.workload, given or {})
    arriving = Counter(arc.step for arcs in graph.arcs.values() for arc in arcs)
    cycles = tuple(tuple(each) for each in graph.cycles())
    looping = frozenset(name for cycle in cycles for name in cycle)
    reached = graph.reachable(graph.entry) | {graph.entry}
    steps = tuple(
        _step(
            playbook,
            step,
            graph,
            workload,
            is_reachable=step.step in reached,
            is_join=arriving[step.step] > 1,
            is_in_cycle=step.step in looping,
        )
        for step in playbook.workflow
    )
    of_entries = needs.of_keychain(playbook, workload)
    return Outline(
        path=playbook.metadata.path,
        name=playbook.metadata.name,
        entry=graph.entry,
        final=graph.final,
        steps=steps,
        cycles=cycles,
        unreachable=tuple(step.step for step in steps if not step.is_reachable),
        tools=_together(step.tools for step in steps),
        credentials=_together([*(step.credentials for step in steps), of_entries]),
        keychain=_together(step.keychain for step in steps),
        playbooks=_together(step.playbooks for step in steps),
    )


def _together(parts: Any) -> tuple[str, ...]:
    return tuple(sorted({each for part in parts for each in part}))


def _step(
    playbook: Playbook,
    step: Step,
    graph: Graph,
    workload: Mapping[str, Any],
    *,
    is_reachable: bool,
    is_join: bool,
    is_in_cycle: bool,
) -> PlanStep:
    needed = needs.of_step(playbook, step, workload)
    return PlanStep(
        step=step.step,
        tools=needed.tools,
        stage=_stage(step, workload),
        arcs=tuple(_arc(step, arc) for arc in graph.arcs[step.step]),
        is_reachable=is_reachable,
        is_join=is_join,
        is_in_cycle=is_in_cycle,
        credentials=needed.credentials,
        keychain=needed.keychain,
        playbooks=needed.playbooks,
    )


def _arc(step: Step, arc: Arc) -> PlanArc:
    when = arc.when if arc.when is None or isinstance(arc.when, str) else str(arc.when).lower()
    return PlanArc(
        step=arc.step,
        on=arc.on,
        when=when,
        is_implicit=is_implicit(step),
        is_failure_aware=is_failure_aware(arc, step=step.step),
    )


def _stage(step: Step, workload: Mapping[str, Any]) -> Stage | None:
    if step.reduce is not None:
        spec = step.reduce.spec
        return Stage(
            kind="reduce",
            mode=spec.mode,
            max_in_flight=spec.max_in_flight,
            frame=_policy(spec.frame),
            sources=step.reduce.from_,
        )
    if step.loop is None:
        return None
    loop = step.loop.spec
    units = None if step.loop.cursor is not None else _count(known(step.loop.in_, workload))
    return Stage(
        kind={"fanout": "fanout", "cursor": "queue"}.get(loop.mode, "loop"),
        mode=loop.mode,
        max_in_flight=known(loop.max_in_flight, workload, otherwise=loop.max_in_flight),
        units=units,
        frames=None if units is None else _frames(loop, units, workload),
        frame=None if loop.frame is None else _policy(loop.frame),
    )


def _policy(frame: Frame) -> dict[str, Any]:
    written: dict[str, Any] = {name: getattr(frame, name) for name in frame.__struct_fields__}
    return written


def _count(collection: Any) -> int | None:
    """Count what a loop would iterate over, by the rules of its source."""
    match collection:
        case bool():
            return None
        case int():
            return max(0, collection)
        case {"rows": list() as rows}:
            return len(rows)
        case list() | dict():
            return len(collection)
        case str() if collection.lstrip().startswith("["):
            try:
                found = codec.decode(collection)
            except msgspec.DecodeError:
                return None
            return len(found) if isinstance(found, list) else None
        case _:
            return None


def _frames(spec: LoopSpec, units: int, workload: Mapping[str, Any]) -> int | None:
    """Count the units of work that are dispatched."""
    if spec.mode == "fanout" and spec.fanout is not None:
        partitions = coercion.integer(known(spec.fanout.partitions, workload))
        if spec.fanout.partitions is not None:
            return None if partitions is None else min(partitions, units)
        return _parts(units, known(spec.fanout.shard_size, workload))
    if spec.mode == "chunked" and spec.frame is not None:
        return _parts(units, known(spec.frame.max_rows, workload))
    return units


def _parts(units: int, size: Any) -> int | None:
    each = coercion.integer(size)
    return None if each is None or each < 1 else -(-units // each)
