"""Random playbooks by seed: the sketches of the properties, drawn by a plain generator."""

import json
import random
from typing import Any

from hypothesis.strategies import SearchStrategy
from msgspec import Struct, structs
from tests.support import sketches
from tests.support.sketches import Node, Sketch
from tests.support.sketching import with_cycles, without_cycles

# What faults take from the work must not use up its attempts.
_ATTEMPTS_MAX = 1000
_RETRIES_MAX = 100
_STEPS_MAX = 6
_CYCLIC_SHARE = 0.2


class Workflow(Struct, frozen=True, kw_only=True):
    """A playbook, and the sketch that says what it must come to."""

    name: str
    source: str
    sketch: Sketch

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
    draw: Any = Draw(chance)
    if chance.random() < _CYCLIC_SHARE:
        sketch = with_cycles(draw, steps_max=4, is_real=True)
    else:
        sketch = without_cycles(draw, steps_max=_STEPS_MAX, is_real=True)
    sketch = structs.replace(sketch, nodes=tuple(map(_by_row, sketch.nodes)))
    document = json.loads(sketches.text(sketch, name=name, must_be_real=True))
    for step in document["workflow"]:
        _be_patient(step)
    return Workflow(name=name, source=json.dumps(document), sketch=sketch)


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
