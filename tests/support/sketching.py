"""Hypothesis strategies for sketches: workflows with and without cycles."""

from collections.abc import Sequence

from hypothesis import strategies as st
from msgspec import structs
from tests.support.sketches import (
    FRAMED,
    LOST,
    Above,
    ArcSketch,
    Below,
    Condition,
    Failed,
    Fanin,
    Gate,
    Node,
    Outcome,
    Reduction,
    Sketch,
    Units,
    Write,
)

KINDS = ("timeout", "transform", "db_constraint", LOST)
# What a task's own policy fails with, so that a real worker can be made to.
REAL_KINDS = ("policy",)
MODES = ("sequential", "parallel", "chunked", "fanout", "cursor")
# A cursor needs a table; where there is one it is what holds commands the longest.
REAL_MODES = MODES[:-1]
TABLE_MODES = (*REAL_MODES, "cursor", "cursor", "cursor")
WORKLOAD = {"low": 0, "high": 3}
_ON_PLAIN = ("call.done", "step.exit", "call.success", "step.done")
_ON_PLAIN_FAILED = ("call.error", "step.failed", "step.error")
_ON_LOOP = ("loop.done", "call.done", "step.exit")
_ON_LOOP_FAILED = ("loop.failed", "call.error", "step.failed")
_NUMBERS = st.integers(0, 3)


class _Drawing:
    """What is drawn so far: a step reads what comes before it on every path."""

    def __init__(
        self,
        draw: st.DrawFn,
        *,
        kinds: Sequence[str],
        names: Sequence[str],
        modes: Sequence[str] = MODES,
        may_stick: bool = False,
    ) -> None:
        self.draw = draw
        self.kinds = kinds
        self.modes = modes
        self.may_stick = may_stick
        self.collected: set[str] = set()
        self.names = names
        self.sure: dict[str, Above] = {}
        self.parents: dict[str, set[str]] = {name: set() for name in names}

    def often(self, share: int) -> bool:
        """Draw true in one of so many cases; the simple case is false."""
        return self.draw(st.integers(0, share - 1)) == share - 1

    def outcome(self, share: int, kinds: Sequence[str] | None = None) -> Outcome:
        """Draw what a unit gives; one in so many fails."""
        if self.often(share):
            return self.draw(st.sampled_from(self.kinds if kinds is None else kinds))
        return self.draw(_NUMBERS)

    def units(self) -> Units | None:
        """Draw a loop, for one step in four."""
        if not self.often(4):
            return None
        mode = self.draw(st.sampled_from(self.modes))
        local = mode != "cursor" and self.often(4)
        kinds = [kind for kind in self.kinds if kind != LOST] if local or mode in FRAMED else None
        outcomes = tuple(self.outcome(5, kinds) for _ in range(self.draw(st.integers(0, 7))))
        failure = self.draw(st.sampled_from([None, "drain", "fail_fast", "best_effort"]))
        is_bounded = failure is not None and self.draw(st.booleans())
        # Of a queue nobody knows beforehand how long it is.
        bounds = [0, 1, 2] if (mode, failure) == ("cursor", "fail_fast") else [0, 1, 2, "40%"]
        return Units(
            mode=mode,
            outcomes=outcomes,
            in_flight=1 if mode == "sequential" else self.draw(st.integers(1, 4)),
            failure=failure,
            failed_max=self.draw(st.sampled_from(bounds)) if is_bounded else 0,
            success_min=self.draw(st.sampled_from([0, 1, "60%"])) if failure == "drain" else 0,
            size=self.draw(st.integers(1, 3)) if mode in FRAMED else 1,
            process="frame" if mode in {"chunked", "fanout"} and self.often(3) else "row",
            local=local,
        )

    def reduction(self, name: str) -> Reduction | None:
        """Draw a reduce of loops that are over by then, for one step in four that has any."""
        before = sorted(self._ancestors(name) & self.collected)
        if not before or not self.often(4):
            return None
        many = self.draw(st.integers(1, min(2, len(before))))
        return Reduction(
            sources=tuple(self.draw(st.permutations(before))[:many]),
            fan_in=self.draw(st.sampled_from([None, 2, 3])),
            accepts_partial=self.draw(st.booleans()),
            start=self.draw(st.sampled_from(["after_fanin", "eager"])),
        )

    def writes(self, name: str, *, is_arc: bool) -> tuple[Write, ...]:
        """Draw a `set` block; shared keys are written and never read."""
        if not self.often(3):
            return ()
        prefix = self.draw(st.sampled_from(["ctx.", "step.", ""]))
        leaf = f"a_{name}" if is_arc else f"c_{name}"
        value = self.draw(_NUMBERS)
        is_own = name in self.sure and not is_arc
        found = [Write(prefix=prefix, path=(leaf,), value=None if is_own else value)]
        if self.draw(st.booleans()):
            found.append(Write(prefix=prefix, path=("tree", leaf), value=value))
        if self.draw(st.booleans()):
            found.append(Write(prefix="ctx.", path=("shared",), value=value))
        return tuple(found)

    def condition(self, name: str, *, has_own: bool) -> Condition:
        """Draw a condition over what is settled when it is asked."""
        before = self._ancestors(name)
        readable = [self.sure[item] for item in sorted(before) if item in self.sure]
        if has_own and name in self.sure:
            readable.append(self.sure[name])
        choices: list[Above] = [Above(source="workload", name=key, bound=1) for key in WORKLOAD]
        choices += readable
        choices += [Above(source="ctx", name=f"c_{item.name}", bound=0) for item in readable]
        chosen = self.draw(st.sampled_from(choices))
        if chosen.source == "workload":
            return chosen
        return Above(
            source=chosen.source, name=chosen.name, field=chosen.field, bound=self.draw(_NUMBERS)
        )

    def about_failure(self, name: str, units: Units | None) -> Condition:
        """Draw a condition that is asked after a failure too."""
        if units is not None and self.draw(st.booleans()):
            if units.failure != "fail_fast" and self.draw(st.booleans()):
                status = self.draw(st.sampled_from(["complete", "partial", "failed"]))
                return Fanin(status=status)
            if units.is_sure():
                return Fanin(failed_above=self.draw(st.integers(0, 2)))
        how = self.draw(
            st.sampled_from(
                [
                    "event.name",
                    "output.status",
                    "event.status",
                    "error is defined",
                    "event.error is defined",
                    "output.error.kind",
                    "error.kind",
                    "event.error.kind",
                    f"{name}.error.kind",
                ]
            )
        )
        fixed = {"event.name": "call.error", "output.status": "error", "event.status": "error"}
        if how in fixed or how.endswith("defined"):
            return Failed(how=how, kind=fixed.get(how))
        kinds = ["loop_items_failed"] if units is not None else [*self.kinds, "policy"]
        return Failed(how=how, kind=self.draw(st.sampled_from(kinds)))

    def edge(self, name: str, to: str, units: Units | None) -> ArcSketch:
        """Draw an arc between two steps."""
        ok, bad = _ON_PLAIN, _ON_PLAIN_FAILED
        if units is not None:
            ok, bad = _ON_LOOP, _ON_LOOP_FAILED
        on, when = None, None
        match self.draw(st.integers(0, 7)):
            case 0 | 1 | 2:
                pass
            case 3 | 4:
                when = self.condition(name, has_own=True)
            case 5:
                when = self.about_failure(name, units)
            case 6:
                on = self.draw(st.sampled_from(bad))
            case _:
                on = self.draw(st.sampled_from([*ok, *bad]))
                when = self.condition(name, has_own=True)
        return ArcSketch(to=to, on=on, when=when, writes=self.writes(name, is_arc=True))

    def gate(self, name: str, units: Units | None) -> Gate | None:
        """Draw an admission rule, for one step in six."""
        if not self.often(6):
            return None
        return Gate(
            when=self.condition(name, has_own=False),
            allows=self.draw(st.booleans()),
            has_else=self.draw(st.booleans()),
            on_deny="skip" if units is not None else self.draw(st.sampled_from(["skip", "fail"])),
        )

    def _ancestors(self, name: str) -> set[str]:
        found: set[str] = set()
        todo = list(self.parents[name])
        while todo:
            here = todo.pop()
            if here not in found:
                found.add(here)
                todo += self.parents[here]
        return found


def without_cycles(
    draw: st.DrawFn, *, steps_max: int = 10, is_real: bool = False, has_tables: bool = False
) -> Sketch:
    """Draw a workflow without cycles; `is_real` keeps to what a worker can be made to.

    With `has_tables` it may claim rows.
    """
    count = draw(st.integers(1, steps_max))
    names = [f"s{place}" for place in range(count)]
    drawing = _Drawing(
        draw,
        kinds=REAL_KINDS if is_real else KINDS,
        names=names,
        modes=_modes(is_real=is_real, has_tables=has_tables),
        may_stick=not is_real,
    )
    ends = draw(st.sampled_from([None, "named", "declared"])) if count > 1 else None
    if ends == "named":
        names[-1] = "end"
        drawing.parents["end"] = set()
    links = _links(drawing, names, has_final=ends is not None)
    nodes: list[Node] = []
    for place, name in enumerate(names):
        targets = [names[to] for to in links[place]]
        nodes.append(_node(drawing, name, targets))
        follow = targets or ([names[-1]] if ends is not None and place < count - 1 else [])
        for to in follow:
            drawing.parents[to].add(name)
    return Sketch(
        nodes=tuple(draw(st.permutations(nodes))) if draw(st.booleans()) else tuple(nodes),
        entry=names[0],
        final=names[-1] if ends is not None else None,
        workload=WORKLOAD,
        failure=draw(st.sampled_from(["fail_fast", "drain"])),
        no_next_is_error=drawing.often(8),
    )


def with_cycles(
    draw: st.DrawFn, *, steps_max: int = 8, is_real: bool = False, has_tables: bool = False
) -> Sketch:
    """Draw a workflow whose arcs lead anywhere: some cycles count, others meet `max_steps`."""
    count = draw(st.integers(1, steps_max))
    names = [f"s{place}" for place in range(count)]
    drawing = _Drawing(
        draw,
        kinds=REAL_KINDS if is_real else KINDS,
        names=names,
        modes=_modes(is_real=is_real, has_tables=has_tables),
    )
    ends = count > 1 and draw(st.booleans())
    nodes: list[Node] = []
    for place, name in enumerate(names):
        is_final = ends and place == count - 1
        many = 0 if is_final else draw(st.integers(0, 3))
        node = _node(drawing, name, [])
        edges = [_turn(drawing, node, names[draw(st.integers(0, count - 1))]) for _ in range(many)]
        if place + 1 < count and not is_final:
            edges.append(drawing.edge(name, names[place + 1], node.units))
        counted = Write(prefix="ctx.", path=(f"v_{name}",), counts=True)
        nodes.append(
            structs.replace(node, patch=False, writes=(*node.writes, counted), edges=tuple(edges))
        )
        if place + 1 < count:
            drawing.parents[names[place + 1]].add(name)
    return Sketch(
        nodes=tuple(draw(st.permutations(nodes))) if draw(st.booleans()) else tuple(nodes),
        entry=names[0],
        final=names[-1] if ends else None,
        workload=WORKLOAD,
        failure=draw(st.sampled_from(["fail_fast", "drain"])),
        steps_max=draw(st.integers(1, 40)),
        is_acyclic=False,
    )


acyclic = st.composite(without_cycles)
cyclic = st.composite(with_cycles)


def _modes(*, is_real: bool, has_tables: bool) -> Sequence[str]:
    if has_tables:
        return TABLE_MODES
    return REAL_MODES if is_real else MODES


def _turn(drawing: _Drawing, node: Node, to: str) -> ArcSketch:
    if drawing.draw(st.integers(0, 2)) == 0:
        return drawing.edge(node.name, to, node.units)
    return ArcSketch(
        to=to, when=Below(name=f"v_{node.name}", bound=drawing.draw(st.integers(1, 4)))
    )


def _links(drawing: _Drawing, names: Sequence[str], *, has_final: bool) -> list[list[int]]:
    """Draw arcs forwards: each step has one that comes from a step near by, and some have more."""
    count = len(names)
    links: list[list[int]] = [[] for _ in names]
    for place in range(1, count):
        if has_final and place == count - 1:
            break
        parent = max(0, place - 1 - drawing.draw(st.integers(0, 3)))
        links[parent].append(place)
    for place in range(count - 1):
        if links[place] or not drawing.often(3):
            for _ in range(drawing.draw(st.integers(0, 2))):
                links[place].append(drawing.draw(st.integers(place + 1, count - 1)))
    return links


def _node(drawing: _Drawing, name: str, targets: Sequence[str]) -> Node:
    draw = drawing.draw
    units = drawing.units()
    gate = drawing.gate(name, units)
    reduces = drawing.reduction(name) if units is None else None
    is_stuck = units is None and reduces is None and drawing.may_stick and drawing.often(12)
    if units is None or units.is_sure():
        field = "n" if units is None else "stats.success"
        drawing.sure[name] = Above(source="step", name=name, bound=0, field=field)
    if units is not None and units.is_sure() and units.mode != "cursor":
        drawing.collected.add(name)
    is_plain = units is None and reduces is None and not is_stuck
    can_patch = is_plain or (units is not None and units.mode == "sequential" and not units.local)
    failing = [kind for kind in drawing.kinds if kind != LOST]
    return Node(
        name=name,
        outcome=drawing.outcome(5, failing if reduces is not None else None),
        units=units,
        reduces=reduces,
        is_stuck=is_stuck,
        patch=can_patch and drawing.often(4),
        gate=gate,
        writes=drawing.writes(name, is_arc=False),
        mode=draw(st.sampled_from(["exclusive", "inclusive"])),
        on_no_match="fail" if drawing.often(8) else draw(st.sampled_from(["complete", "quiet"])),
        edges=tuple(drawing.edge(name, to, units) for to in targets),
    )
