"""What a playbook must come to, worked out one step after the other from the language page alone.

It knows nothing of events, commands or attempts. `play` holds for workflows without cycles: there
every step runs at most once, and nothing that a sketch reads depends on the order of events.
"""

from collections.abc import Sequence
from typing import Any, assert_never

import msgspec
from msgspec import Struct
from tests.support.sketches import (
    LOST,
    Above,
    ArcSketch,
    Below,
    Condition,
    Failed,
    Fanin,
    Node,
    Sketch,
    Units,
    Write,
)

_DONE = {"call.done", "step.exit", "step.done", "call.success"}
_ERROR = {"call.error", "step.failed", "step.error"}
_LOOP_DONE = {"loop.done", "call.done", "step.exit", "step.done"}
_LOOP_FAILED = {"loop.failed", "call.error", "step.failed", "step.error"}


class Ended(Struct, frozen=True, kw_only=True):
    """How a run of a step ended: its counters, and the kind of its error."""

    status: str
    number: int = 0
    error: str | None = None
    total: int = 0
    success: int = 0
    failed: int = 0
    items: int = 0
    # How the units of a loop ended: `complete`, `partial` or `failed`; None for other steps.
    fanin: str | None = None
    units_failed: int = 0


class Expected(Struct, kw_only=True):
    """What a run comes to.

    Where `failures` is empty, `steps` and `ctx` are exact. Else the first failure in time ends the
    run: then what ran is among `steps`. `unordered` names `ctx` keys without an order of writes.
    """

    steps: dict[str, Ended] = msgspec.field(default_factory=dict)
    ctx: dict[str, Any] = msgspec.field(default_factory=dict)
    failures: set[tuple[str, str]] = msgspec.field(default_factory=set)
    unordered: set[str] = msgspec.field(default_factory=set)

    @property
    def status(self) -> str:
        """The status of the execution."""
        return "FAILED" if self.failures else "COMPLETED"


class _Play:
    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self.reach = sketch.reach()
        self.expected = Expected()
        self.tokens = [sketch.entry]
        self.writers: dict[str, str] = {}

    def run(self) -> Expected:
        while self.tokens:
            name = next(
                token
                for token in self.tokens
                if not any(token in self.reach[other] for other in self.tokens)
            )
            self.tokens.remove(name)
            self._run(self.sketch.node(name))
        return self.expected

    def _run(self, node: Node) -> None:
        ended = self._admitted(node) or self._worked(node)
        self.expected.steps[node.name] = ended
        if ended.status == "SKIPPED":
            return
        if ended.status == "COMPLETED":
            self._write(node, node.writes)
        chosen = self._chosen(node, ended)
        for edge in chosen:
            self._write(node, edge.writes)
        if ended.status == "FAILED" and not chosen:
            self.expected.failures.add((node.name, ended.error or ""))
            return
        targets = [edge.to for edge in chosen] or self._without_match(node)
        self.tokens += [item for item in dict.fromkeys(targets) if item not in self.tokens]

    def _admitted(self, node: Node) -> Ended | None:
        gate = node.gate
        if gate is None:
            return None
        # With one rule before `else`, and the opposite of the last rule without it, this is all.
        is_allowed = gate.allows if self._holds(node, gate.when) else not gate.allows
        if is_allowed:
            return None
        if gate.on_deny == "skip":
            return Ended(status="SKIPPED")
        return Ended(status="FAILED", error="policy")

    def _worked(self, node: Node) -> Ended:
        if node.is_stuck:
            return Ended(status="FAILED", error="timeout", items=1)
        if node.reduces is not None:
            return self._reduced(node)
        if node.units is not None:
            ended = loop_end(node.units)
            outcomes = node.units.outcomes[: ended.items]
        else:
            outcomes = (node.outcome,)
            if isinstance(node.outcome, str):
                ended = Ended(status="FAILED", error=node.outcome, items=1)
            else:
                ended = Ended(status="COMPLETED", number=node.outcome, items=1)
        indexes = [index for index, item in enumerate(outcomes) if item != LOST]
        if node.patch and indexes:
            self.expected.ctx[f"p_{node.name}"] = indexes[-1]
        return ended

    def _reduced(self, node: Node) -> Ended:
        """Work out how a reduce ends (language, 7.8)."""
        assert node.reduces is not None
        for name in node.reduces.sources:
            source = self.expected.steps.get(name)
            fanin = source.fanin if source is not None else None
            if fanin is None or (fanin != "complete" and not node.reduces.accepts_partial):
                return Ended(status="FAILED", error="fanin_incomplete")
        if isinstance(node.outcome, str):
            return Ended(status="FAILED", error=node.outcome)
        return Ended(status="COMPLETED", number=node.outcome)

    def _write(self, node: Node, writes: Sequence[Write]) -> None:
        for write in writes:
            value = write.value if write.value is not None else self._number(node.name)
            top, *rest = write.path
            if rest:
                self.expected.ctx.setdefault(top, {})[rest[0]] = value
                continue
            self.expected.ctx[top] = value
            before = self.writers.get(top, node.name)
            if before != node.name and node.name not in self.reach[before]:
                self.expected.unordered.add(top)
            self.writers[top] = node.name

    def _number(self, name: str) -> int:
        ended = self.expected.steps.get(name)
        if ended is None or (ended.status != "COMPLETED" and not ended.total):
            return 0
        return ended.success if self.sketch.node(name).units is not None else ended.number

    def _chosen(self, node: Node, ended: Ended) -> list[ArcSketch]:
        chosen: list[ArcSketch] = []
        for edge in node.edges:
            if ended.status == "FAILED" and edge.on is None and not _is_aware(edge.when):
                continue
            if edge.on is not None and edge.on not in _names(node, ended):
                continue
            if edge.when is not None and not self._holds(node, edge.when, ended):
                continue
            chosen.append(edge)
            if node.mode == "exclusive":
                break
        return chosen

    def _without_match(self, node: Node) -> list[str]:
        sketch = self.sketch
        if not node.edges and sketch.final not in {None, node.name}:
            return [sketch.final or ""]
        mode = node.on_no_match if node.edges else "complete"
        if mode == "fail" or (sketch.no_next_is_error and node.name != sketch.final):
            self.expected.failures.add((node.name, "no_route"))
        return []

    def _holds(self, node: Node, when: Condition, ended: Ended | None = None) -> bool:
        match when:
            case Above(source="workload"):
                return self.sketch.workload[when.name] > when.bound
            case Above(source="ctx"):
                return self.expected.ctx.get(when.name, 0) > when.bound
            case Above():
                return self._number(when.name) > when.bound
            case Failed():
                error = ended.error if ended is not None else None
                return error is not None and when.kind in {None, error, "call.error", "error"}
            case Fanin():
                assert ended is not None, "only arcs look at the fan-in"
                if when.status is not None:
                    return when.status == ended.fanin
                return ended.units_failed > (when.failed_above or 0)
            case Below():
                raise AssertionError("cycles have no oracle")
            case _:
                assert_never(when)


def play(sketch: Sketch) -> Expected:
    """Work out what a sketch without cycles comes to."""
    assert sketch.is_acyclic
    return _Play(sketch).run()


def loop_end(units: Units) -> Ended:
    """Work out how a loop ends (language, 7.2)."""
    total, success, failed, items = len(units.outcomes), 0, 0, 0
    units_total, units_failed = len(units.units()), 0
    counts_items = units.process == "row"
    counted = total if units.mode != "fanout" and counts_items else units_total
    failed_max = bound(units.failed_max, counted)
    for unit in units.units():
        items += len(unit)
        bad = sum(isinstance(item, str) for item in unit)
        units_failed += bad > 0
        failed += bad if counts_items else bad > 0
        success += len(unit) - bad if counts_items else bad == 0
        if units.failure == "fail_fast" and units_failed > failed_max:
            break
    units_ok = success if counted == total and counts_items else units_total - units_failed
    is_bad = units_failed > failed_max or units_ok < bound(units.success_min, counted)
    is_bad = is_bad and units.failure != "best_effort"
    is_bad = is_bad and not (units.mode == "cursor" and units.failure is None)
    fanin = "complete"
    if units_failed:
        fanin = "failed" if units_failed == units_total else "partial"
    return Ended(
        status="FAILED" if is_bad else "COMPLETED",
        error="loop_items_failed" if is_bad else None,
        total=total if counts_items else units_total,
        success=success,
        failed=failed,
        items=items,
        fanin=fanin,
        units_failed=units_failed,
    )


def bound(written: int | str, total: int) -> int:
    """Read a number of units, or a percentage of all, rounded down."""
    return written if isinstance(written, int) else int(written.rstrip("%")) * total // 100


def _names(node: Node, ended: Ended) -> set[str]:
    # A loop that never began is a step like any other, but for the name of its boundary event.
    if node.units is not None:
        return _LOOP_FAILED if ended.status == "FAILED" else _LOOP_DONE
    return _ERROR if ended.status == "FAILED" else _DONE


def _is_aware(when: Condition | None) -> bool:
    return isinstance(when, Failed | Fanin)
