"""Random playbooks by seed: the sketches of the properties, drawn by a plain generator.

The tasks of a sketch do nothing; here some become calls of the outside world, some wait for a
message, some call another playbook. What the sketch says of the outcome holds for all of them.
"""

import json
import random
from typing import Any

from hypothesis.strategies import SearchStrategy
from msgspec import Struct, structs
from tests.simulation import streamed
from tests.simulation.streamed import Streamed
from tests.support import sketches
from tests.support.sketches import ArcSketch, Node, Sketch, Units
from tests.support.sketching import with_cycles, without_cycles

CHILD = "random/child"
SECRET_NAME = "CANARY"  # noqa: S105 - the name of a variable
# What faults take from the work must not use up its attempts.
_ATTEMPTS_MAX = 1000
_RETRIES_MAX = 100
_STEPS_MAX = 6
_CYCLIC_SHARE = 0.2
_STREAMED_SHARE = 0.12
_TOKEN = "{{ keychain.env.canary }}"  # noqa: S105 - a template that names it
_KEYCHAIN = [
    {"name": "env", "kind": "secret_manager", "provider": "env", "map": {"canary": SECRET_NAME}}
]


class Signal(Struct, frozen=True, kw_only=True):
    """A message that a step waits for."""

    step: str
    value: int


class Workflow(Struct, frozen=True, kw_only=True):
    """A playbook, and the plan that says what it must come to."""

    name: str
    source: str
    plan: Sketch | Streamed
    signals: tuple[Signal, ...] = ()
    # Steps whose tasks reach into the outside world, each time under the same key.
    outside: frozenset[str] = frozenset()

    @property
    def path(self) -> str:
        """Return the path that it is registered under."""
        return f"random/{self.name}"


class Draw:
    """Gives a value of a strategy: any of its values, by lot."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __call__(self, strategy: SearchStrategy[Any]) -> Any:
        """Draw from the four strategies that sketches are made of."""
        asked: Any = getattr(strategy, "wrapped_strategy", strategy)
        match type(asked).__name__:
            case "IntegersStrategy":
                return self._chance.randint(asked.start, asked.end)
            case "SampledFromStrategy" | "JustStrategy":
                return self._chance.choice(list(asked.elements))
            case "BooleansStrategy":
                return self._chance.random() < 0.5
            case "PermutationStrategy":
                return self._chance.sample(list(asked.values), len(asked.values))
            case other:
                raise AssertionError(f"sketches draw from no {other}")


def draw_workflow(chance: random.Random, name: str) -> Workflow:
    """Draw a workflow for workers that execute it."""
    if chance.random() < _STREAMED_SHARE:
        return _draw_streamed(chance, name)
    draw: Any = Draw(chance)
    if chance.random() < _CYCLIC_SHARE:
        sketch = with_cycles(draw, steps_max=4, is_real=True, has_tables=True)
    else:
        sketch = without_cycles(draw, steps_max=_STEPS_MAX, is_real=True, has_tables=True)
    sketch = structs.replace(sketch, nodes=tuple(map(_by_row, sketch.nodes)))
    document = json.loads(sketches.text(sketch, name=name, must_be_real=True))
    document["keychain"] = _KEYCHAIN
    outside, signals = [], []
    for node, step in zip(sketch.nodes, document["workflow"], strict=True):
        _be_patient(step)
        _vary_frames(step, chance)
        is_plain = node.units is None and node.reduces is None and not node.patch
        lot = chance.random()
        if is_plain and isinstance(node.outcome, int) and lot < 0.15:
            step["tool"] = _call_of(node.outcome)
        elif is_plain and isinstance(node.outcome, int) and lot < 0.3 and sketch.is_acyclic:
            step["tool"] = _signal(node.name)
            signals.append(Signal(step=node.name, value=node.outcome))
        elif lot < 0.7:
            step["tool"] = _outside(step["tool"], is_flaky=chance.random() < 0.4)
            outside.append(node.name)
    return Workflow(
        name=name,
        source=json.dumps(document),
        plan=sketch,
        signals=tuple(signals),
        outside=frozenset(outside),
    )


def _draw_streamed(chance: random.Random, name: str) -> Workflow:
    stream = streamed.draw(chance)
    inputs = {"flaky": chance.random() < 0.4, "token": _TOKEN}
    document = streamed.document(stream, name=name, inputs=inputs)
    return Workflow(name=name, source=json.dumps({**document, "keychain": _KEYCHAIN}), plan=stream)


def child() -> str:
    """Write the playbook that others call: it gives back what it is given."""
    document = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "child", "path": CHILD},
        "workload": {"n": 0},
        "workflow": [
            {
                "step": "say",
                "tool": {"kind": "noop", "result": {"n": "{{ workload.n }}"}},
                "next": {"arcs": [{"step": "tidy"}]},
            },
            {"step": "tidy", "tool": {"kind": "noop"}},
        ],
    }
    return json.dumps(document)


def signal_key(execution_id: str, step: str) -> str:
    """Name what a step of an execution waits for."""
    return f"{execution_id}-{step}"


def _by_row(node: Node) -> Node:
    """Have rows processed one by one: the task of a sketch looks at one item."""
    if node.units is None:
        return node
    return structs.replace(node, units=structs.replace(node.units, process="row"))


def _be_patient(step: dict[str, Any]) -> None:
    for source in (step.get("loop"), step.get("reduce")):
        if source is None:
            continue
        spec = source["spec"]
        if "frame" in spec:
            spec["frame"]["max_attempts"] = _ATTEMPTS_MAX
        if "fanout" in spec:
            spec["fanout"]["max_shard_retries"] = _RETRIES_MAX
        if source is step.get("loop"):
            spec["max_attempts"] = _ATTEMPTS_MAX


def _vary_frames(step: dict[str, Any], chance: random.Random) -> None:
    """Let frames end early, run rows at once, keep results: the counts stay as they are."""
    spec = step.get("loop", {}).get("spec", {})
    if "frame" in spec:
        spec["frame"] |= {
            "max_seconds": chance.choice([0.5, 2, 30]),
            "row_concurrency": chance.randint(1, 3),
        }
    if spec.get("mode") == "cursor":
        spec["collect"] = chance.choice(["none", "all"])


def _call_of(value: int) -> dict[str, Any]:
    return {"kind": "playbook", "path": CHILD, "return_step": "say", "input": {"n": value}}


def _signal(step: str) -> dict[str, Any]:
    key = signal_key("{{ execution_id }}", step)
    return {"kind": "external", "mode": "signal", "correlation_key": key}


def _outside(task: dict[str, Any], *, is_flaky: bool) -> dict[str, Any]:
    """Let a task be done outside: slowly, and where it is flaky not at the first attempt."""
    rules = task["spec"]["policy"]["rules"]
    if is_flaky:
        again = {"do": "retry", "attempts": _RETRIES_MAX, "delay": 0.2}
        rules = [{"when": "{{ output.error.kind == 'connection' }}", "then": again}, *rules]
    return {
        "kind": "python",
        "code": "played by the simulation",
        "input": {**task["result"], "flaky": is_flaky, "token": _TOKEN},
        "spec": {"policy": {"rules": rules}},
    }


def draw_batched(chance: random.Random, name: str) -> Workflow:
    """Draw a loop of so many items that workers get several of them at once."""
    outcomes = tuple(
        "policy" if chance.random() < 0.1 else chance.randint(0, 9)
        for _ in range(chance.randint(8, 40))
    )
    units = Units(
        mode="parallel",
        outcomes=outcomes,
        in_flight=chance.randint(1, 4),
        failure=chance.choice([None, "drain", "best_effort"]),
    )
    each = Node(name="each", units=units, edges=(ArcSketch(to="after"),))
    sketch = Sketch(nodes=(each, Node(name="after", outcome=1)), entry="each")
    document = json.loads(sketches.text(sketch, name=name, must_be_real=True))
    document["keychain"] = _KEYCHAIN
    step = document["workflow"][0]
    _be_patient(step)
    is_outside = chance.random() < 0.7
    if is_outside:
        step["tool"] = _outside(step["tool"], is_flaky=chance.random() < 0.4)
    return Workflow(
        name=name,
        source=json.dumps(document),
        plan=sketch,
        outside=frozenset({"each"}) if is_outside else frozenset(),
    )
