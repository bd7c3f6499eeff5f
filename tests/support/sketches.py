"""Random playbooks as values: what the steps do, where they lead, and the same thing as text.

A sketch says everything that the outcome of a run depends on, so that one sketch is played by the
kernel, by the whole system and by the oracle (`tests.support.oracle`). Values that a run reads are
those that every order of events gives: of the step itself, or of steps that lead to it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

# What a unit of work gives: a number, or the kind of its error.
Outcome = int | str
LOST = "worker_lost"
# Never answers: its step ends when its time is over.
STUCK = "timeout"
STUCK_S = 30
# How often a frame may be dispatched.
ATTEMPTS_MAX = 5
FRAMED = ("chunked", "fanout", "cursor")


class Above(Struct, frozen=True, kw_only=True):
    """Whether a number is larger than a bound; what is not there counts as 0."""

    source: str
    name: str
    bound: int
    field: str = "n"

    def text(self) -> str:
        """Write the condition."""
        if self.source == "workload":
            return f"{{{{ workload.{self.name} > {self.bound} }}}}"
        what = f"ctx.{self.name}" if self.source == "ctx" else f"{self.name}.{self.field}"
        return f"{{{{ ({what} | default(0)) > {self.bound} }}}}"


class Below(Struct, frozen=True, kw_only=True):
    """Whether a counter in `ctx` has not come to a bound; only cycles use it."""

    name: str
    bound: int

    def text(self) -> str:
        """Write the condition."""
        return f"{{{{ (ctx.{self.name} | default(0)) < {self.bound} }}}}"


class Failed(Struct, frozen=True, kw_only=True):
    """Whether the step failed, in one of the ways to ask; with `kind`, whether that way."""

    how: str
    kind: str | None = None

    def text(self) -> str:
        """Write the condition."""
        return "{{ " + self.how + (f" == '{self.kind}'" if self.kind is not None else "") + " }}"


class Fanin(Struct, frozen=True, kw_only=True):
    """Whether so many units of a loop failed, or whether that is its outcome."""

    failed_above: int | None = None
    status: str | None = None

    def text(self) -> str:
        """Write the condition."""
        if self.status is not None:
            return f"{{{{ fanin.status == '{self.status}' }}}}"
        return f"{{{{ fanin.failed > {self.failed_above} }}}}"


Condition = Above | Below | Failed | Fanin


class Write(Struct, frozen=True, kw_only=True):
    """One key of a `set` block; a value of None is the step's own number."""

    prefix: str
    path: tuple[str, ...]
    value: int | None = None
    counts: bool = False


class ArcSketch(Struct, frozen=True, kw_only=True):
    """An arc."""

    to: str
    on: str | None = None
    when: Condition | None = None
    writes: tuple[Write, ...] = ()


class Gate(Struct, frozen=True, kw_only=True):
    """An admission rule: allowed when the condition holds, else not (or the reverse)."""

    when: Condition
    allows: bool
    has_else: bool
    on_deny: str


class Units(Struct, frozen=True, kw_only=True):
    """A loop: what each item gives, and when the failures of items are the loop's.

    `size` is that of chunks, shards and claims; `local` is one command for the whole loop.
    """

    mode: str
    outcomes: tuple[Outcome, ...]
    in_flight: int = 1
    failure: str | None = None
    failed_max: int | str = 0
    success_min: int | str = 0
    size: int = 1
    process: str = "row"
    local: bool = False

    def is_sure(self) -> bool:
        """Tell whether the counters are the same in every order of events."""
        return self.failure != "fail_fast" or self.mode == "sequential"

    def units(self) -> list[tuple[Outcome, ...]]:
        """Group the items as failures are counted: by shard, by whole chunk, or each alone."""
        size = self.size if self.mode == "fanout" or self.process == "frame" else 1
        return [self.outcomes[at : at + size] for at in range(0, len(self.outcomes), size)]


class Reduction(Struct, frozen=True, kw_only=True):
    """A reduce: the loops whose parts it takes, and how."""

    sources: tuple[str, ...]
    fan_in: int | None = None
    accepts_partial: bool = False
    start: str = "after_fanin"


class Node(Struct, frozen=True, kw_only=True):
    """A step: its work, and what follows."""

    name: str
    outcome: Outcome = 0
    units: Units | None = None
    reduces: Reduction | None = None
    is_stuck: bool = False
    patch: bool = False
    gate: Gate | None = None
    writes: tuple[Write, ...] = ()
    mode: str = "exclusive"
    on_no_match: str = "complete"
    edges: tuple[ArcSketch, ...] = ()


class Sketch(Struct, frozen=True, kw_only=True):
    """A playbook; `nodes` are in workflow order."""

    nodes: tuple[Node, ...]
    entry: str
    final: str | None = None
    workload: Mapping[str, int] = msgspec.field(default_factory=dict)
    failure: str = "fail_fast"
    no_next_is_error: bool = False
    steps_max: int | None = None
    is_acyclic: bool = True

    def node(self, name: str) -> Node:
        """Return the step of a name."""
        return next(item for item in self.nodes if item.name == name)

    def targets(self, name: str) -> list[str]:
        """List where a step may lead, the implicit arc included."""
        node = self.node(name)
        if node.edges:
            return list(dict.fromkeys(edge.to for edge in node.edges))
        return [self.final] if self.final is not None and self.final != name else []

    def reach(self) -> dict[str, frozenset[str]]:
        """Map every step to those that one or more arcs lead to."""
        direct = {node.name: self.targets(node.name) for node in self.nodes}
        found: dict[str, frozenset[str]] = {}
        for name, targets in direct.items():
            seen: set[str] = set()
            todo = list(targets)
            while todo:
                here = todo.pop()
                if here not in seen:
                    seen.add(here)
                    todo += direct[here]
            found[name] = frozenset(seen)
        return found


def text(sketch: Sketch, *, name: str = "sketch", must_be_real: bool = False) -> str:
    """Write a sketch as a playbook; JSON is YAML.

    `must_be_real` gives the tasks the behaviour, for workers that execute them.
    """
    spec: dict[str, Any] = {
        "entry_step": sketch.entry,
        "no_next_is_error": sketch.no_next_is_error,
        "policy": {"failure": {"mode": sketch.failure}},
    }
    if sketch.final is not None:
        spec["final_step"] = sketch.final
    if sketch.steps_max is not None:
        spec["policy"]["limits"] = {"max_steps": sketch.steps_max}
    document = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": name, "path": f"random/{name}"},
        "executor": {"spec": spec},
        "workload": dict(sketch.workload),
        "workflow": [_step(node, must_be_real=must_be_real) for node in sketch.nodes],
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def _step(node: Node, *, must_be_real: bool) -> dict[str, Any]:
    written: dict[str, Any] = {"step": node.name}
    spec: dict[str, Any] = {}
    if node.gate is not None:
        spec["policy"] = {"admit": _gate(node.gate)}
    if node.is_stuck:
        spec["timeout"] = STUCK_S
    if spec:
        written["spec"] = spec
    if node.units is not None:
        written["loop"] = _loop(node.units)
    if node.reduces is not None:
        written["reduce"] = _reduce(node.reduces)
    written["tool"] = _task(node) if must_be_real else {"kind": "noop"}
    if node.writes:
        written["set"] = _set(node, node.writes)
    how = {"mode": node.mode, "on_no_match": node.on_no_match}
    if node.edges:
        written["next"] = {"spec": how, "arcs": [_arc(node, edge) for edge in node.edges]}
    return written


def _gate(gate: Gate) -> dict[str, Any]:
    rules: list[dict[str, Any]] = [{"when": gate.when.text(), "then": {"allow": gate.allows}}]
    if gate.has_else:
        rules.append({"else": {"then": {"allow": not gate.allows}}})
    return {"on_deny": gate.on_deny, "rules": rules}


def _loop(units: Units) -> dict[str, Any]:
    spec: dict[str, Any] = {"mode": units.mode}
    policy: dict[str, Any] = {}
    if units.mode != "sequential":
        spec["max_in_flight"] = units.in_flight
    if units.mode in FRAMED:
        spec |= _framing(units)
    if units.local:
        policy["exec"] = "local"
    if units.failure is not None:
        failure: dict[str, Any] = {"mode": units.failure, "max_failed": units.failed_max}
        if units.success_min:
            failure["min_success"] = units.success_min
        policy["failure"] = failure
    if policy:
        spec["policy"] = policy
    if units.mode == "cursor":
        cursor = {
            "kind": "postgres",
            "auth": "db",
            "claim": "SELECT at FROM numbers WHERE at < $1 LIMIT $2",
            "params": [len(units.outcomes), "{{ __frame_max_rows }}"],
        }
        return {"cursor": cursor, "iterator": "i", "spec": spec}
    return {"in": f"{{{{ {len(units.outcomes)} }}}}", "iterator": "i", "spec": spec}


def _framing(units: Units) -> dict[str, Any]:
    frame = {"process": units.process, "max_attempts": ATTEMPTS_MAX}
    if units.mode == "chunked":
        return {"frame": frame, "chunk_size": units.size}
    if units.mode == "fanout":
        return {
            "frame": frame,
            "fanout": {"shard_size": units.size, "max_shard_retries": ATTEMPTS_MAX - 1},
        }
    return {"frame": {**frame, "max_rows": units.size}}


def _reduce(reduces: Reduction) -> dict[str, Any]:
    spec: dict[str, Any] = {"accept_partial": reduces.accepts_partial}
    if reduces.fan_in is not None:
        spec |= {"mode": "tree", "fan_in": reduces.fan_in, "start": reduces.start}
    spec["frame"] = {"max_attempts": ATTEMPTS_MAX}
    return {"from": list(reduces.sources), "iterator": "parts", "spec": spec}


def _task(node: Node) -> dict[str, Any]:
    outcomes: Sequence[Outcome] = node.units.outcomes if node.units else (node.outcome,)
    values = [outcome if isinstance(outcome, int) else 0 for outcome in outcomes]
    place = _place(node)
    patch = {"set": {patch_key(node): f"{{{{ {place} }}}}"}} if node.patch else {}
    failing = [index for index, item in enumerate(outcomes) if isinstance(item, str)]
    rules = [
        {
            "when": f"{{{{ {place} in {failing} }}}}",
            "then": {"do": "fail", "message": "as planned", **patch},
        },
        {"else": {"then": {"do": "continue", **patch}}},
    ]
    result = {"n": f"{{{{ {values or [0]}[{place}] }}}}"}
    return {"kind": "noop", "result": result, "spec": {"policy": {"rules": rules}}}


def _place(node: Node) -> str:
    """Say where a task finds its item's place among the outcomes."""
    if node.units is None:
        return "0"
    return "iter.i.at" if node.units.mode == "cursor" else "iter.i"


def patch_key(node: Node) -> str:
    """Name the `ctx` key that a step's pipeline writes: the index of its latest item."""
    return f"ctx.p_{node.name}"


def _set(node: Node, writes: Sequence[Write]) -> dict[str, Any]:
    return {write.prefix + ".".join(write.path): _value(node, write) for write in writes}


def _value(node: Node, write: Write) -> Any:
    if write.counts:
        return f"{{{{ (ctx.{write.path[0]} | default(0)) + 1 }}}}"
    if write.value is not None:
        return write.value
    field = "stats.success" if node.units is not None else "n"
    return f"{{{{ {node.name}.{field} | default(0) }}}}"


def _arc(node: Node, arc_sketch: ArcSketch) -> dict[str, Any]:
    written: dict[str, Any] = {"step": arc_sketch.to}
    if arc_sketch.on is not None:
        written["on"] = arc_sketch.on
    if arc_sketch.when is not None:
        written["when"] = arc_sketch.when.text()
    if arc_sketch.writes:
        written["set"] = _set(node, arc_sketch.writes)
    return written
