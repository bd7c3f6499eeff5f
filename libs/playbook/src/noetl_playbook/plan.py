"""The graph of a workflow: where it begins and ends, what follows what, who can reach whom."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from noetl_playbook.model import language_names
from noetl_playbook.model.playbook import Arc, Playbook, Step
from noetl_playbook.templates.expressions import compile_condition

_FAILURE_NAMES = frozenset({"event", "error", "fanin"})
_FAILURE_ATTRIBUTES = frozenset({"error", "http", "status_code"})
_RESULT_NAMES = frozenset({"output", "result", "response"})


class WorkflowGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one playbook and the arcs between them, implicit ones included."""

    entry: str
    final: str | None
    steps: dict[str, Step]
    order: dict[str, int]
    arcs: dict[str, tuple[Arc, ...]]
    stream_targets: frozenset[str]
    reach: dict[str, int]

    @classmethod
    def from_playbook(cls, playbook: Playbook) -> "WorkflowGraph":
        """Build the graph of a playbook; arcs to unknown steps lead nowhere."""
        steps = map_steps_by_name(playbook)
        final = find_final_step(playbook)
        targets = list_stream_targets(playbook)
        arcs = {
            name: list_arcs(step, final=final, stream_targets=targets)
            for name, step in steps.items()
        }
        order = {name: index for index, name in enumerate(steps)}
        return cls(
            entry=get_entry_step(playbook),
            final=final,
            steps=steps,
            order=order,
            arcs=arcs,
            stream_targets=targets,
            reach=_compute_reach(arcs, order),
        )

    def can_reach(self, source: str, target: str) -> bool:
        """Tell whether one or more arcs lead from a step to another, or back to itself."""
        return bool(self.reach[source] >> self.order[target] & 1)

    def list_cycles(self) -> list[list[str]]:
        """List the groups of steps that lead back to themselves, in workflow order."""
        direct = _list_direct_targets(self.arcs, self.order)
        loops = [
            sorted(component, key=self.order.__getitem__)
            for component in _list_components(direct)
            if len(component) > 1 or component[0] in direct[component[0]]
        ]
        return sorted(loops, key=lambda cycle: self.order[cycle[0]])

    def list_reachable(self, source: str) -> frozenset[str]:
        """List the steps that one or more arcs lead to."""
        bits = self.reach[source]
        return frozenset(name for name, index in self.order.items() if bits >> index & 1)


def map_steps_by_name(playbook: Playbook) -> dict[str, Step]:
    """Map every step's name to the step, in workflow order."""
    return {step.step: step for step in playbook.workflow}


def get_entry_step(playbook: Playbook) -> str:
    """Name the step that gets the first token."""
    entry_step = playbook.executor.spec.entry_step
    names = [step.step for step in playbook.workflow]
    if entry_step is not None and entry_step in names:
        return entry_step
    return "start" if "start" in names else names[0]


def find_final_step(playbook: Playbook) -> str | None:
    """Name the step that runs once after all branches, if there is one."""
    final_step = playbook.executor.spec.final_step
    names = [step.step for step in playbook.workflow]
    if final_step is not None and final_step in names:
        return final_step
    return "end" if "end" in names else None


def list_stream_targets(playbook: Playbook) -> frozenset[str]:
    """Name the steps that are activated once per chunk."""
    return frozenset(
        arc.step
        for step in playbook.workflow
        for arc in (step.next.arcs if step.next else ())
        if arc.on == language_names.PARTIAL
    )


def list_arcs(step: Step, *, final: str | None, stream_targets: frozenset[str]) -> tuple[Arc, ...]:
    """List a step's arcs; one without any leads to the final step."""
    if step.next is not None and step.next.arcs:
        return step.next.arcs
    if final is None or step.step == final or step.step in stream_targets:
        return ()
    return (Arc(step=final),)


def is_implicit(step: Step) -> bool:
    """Tell whether a step writes no arcs, so that it leads to the final step if any."""
    return step.next is None or not step.next.arcs


def is_failure_aware(arc: Arc, *, step: str) -> bool:
    """Tell whether an arc of a step is considered after the step failed."""
    if arc.on is not None:
        return True
    if arc.when is None or isinstance(arc.when, bool):
        return False
    condition = compile_condition(arc.when)
    if condition.names & _FAILURE_NAMES or "output.status" in condition.paths:
        return True
    return any(_reads_failure(path, step=step) for path in condition.paths)


def _reads_failure(path: str, *, step: str) -> bool:
    root, *attributes = path.split(".")
    return (root in _RESULT_NAMES or root == step) and any(
        attribute in _FAILURE_ATTRIBUTES for attribute in attributes
    )


def _list_direct_targets(
    arcs: Mapping[str, Iterable[Arc]], order: dict[str, int]
) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(dict.fromkeys(arc.step for arc in following if arc.step in order))
        for name, following in arcs.items()
    }


def _compute_reach(arcs: Mapping[str, Iterable[Arc]], order: dict[str, int]) -> dict[str, int]:
    """Compute for every step the set of steps it can reach, as a bit set over `order`."""
    direct = _list_direct_targets(arcs, order)
    reach = dict.fromkeys(order, 0)
    # Components come after all that they lead to, so that one look at each arc is enough.
    for component in _list_components(direct):
        members = frozenset(component)
        bits = 0
        for name in component:
            for target in direct[name]:
                bits |= 1 << order[target]
                if target not in members:
                    bits |= reach[target]
        for name in component:
            reach[name] = bits
    return reach


class _StepVisit(msgspec.Struct):
    number: int
    lowest: int
    is_open: bool = True


def _list_components(direct: Mapping[str, tuple[str, ...]]) -> Iterator[list[str]]:
    """Give the strongly connected components, each after those that it leads to (Tarjan)."""
    visits: dict[str, _StepVisit] = {}
    open_steps: list[str] = []
    for root in direct:
        if root in visits:
            continue
        visits[root] = _StepVisit(len(visits), len(visits))
        open_steps.append(root)
        walk = [(root, iter(direct[root]))]
        while walk:
            name, targets = walk[-1]
            target = next(targets, None)
            if target is not None:
                _visit_target(visits, open_steps, walk, name=name, target=target, direct=direct)
                continue
            walk.pop()
            visit = visits[name]
            if walk:
                above = visits[walk[-1][0]]
                above.lowest = min(above.lowest, visit.lowest)
            if visit.lowest == visit.number:
                yield _close_component(visits, open_steps, name)


def _visit_target(
    visits: dict[str, _StepVisit],
    open_steps: list[str],
    walk: list[tuple[str, Iterator[str]]],
    *,
    name: str,
    target: str,
    direct: Mapping[str, tuple[str, ...]],
) -> None:
    visit = visits.get(target)
    if visit is None:
        visits[target] = _StepVisit(len(visits), len(visits))
        open_steps.append(target)
        walk.append((target, iter(direct[target])))
    elif visit.is_open:
        visits[name].lowest = min(visits[name].lowest, visit.number)


def _close_component(visits: dict[str, _StepVisit], open_steps: list[str], name: str) -> list[str]:
    component: list[str] = []
    while not component or component[-1] != name:
        component.append(open_steps.pop())
        visits[component[-1]].is_open = False
    return component
