"""A playbook as the planner reads it: its graph, and its steps as they travel."""

from collections.abc import Iterator
from typing import Any

from noetl_contracts import codec
from noetl_contracts.ids import CatalogId
from noetl_planner.domain.keychain import Keys
from noetl_playbook.expressions import TemplateError, compile_value
from noetl_playbook.model import Arc, Playbook
from noetl_playbook.plan import Graph, entry_step, final_step, is_implicit, steps_by_name


class Program:
    """A canonical playbook with everything worked out that does not depend on a run."""

    def __init__(
        self,
        playbook: Playbook,
        *,
        catalog_id: CatalogId,
        catalog_version: int,
        digest: str,
    ) -> None:
        self.playbook = playbook
        self.catalog_id = catalog_id
        self.catalog_version = catalog_version
        self.digest = digest
        self.steps = steps_by_name(playbook)
        self.order = {name: place for place, name in enumerate(self.steps)}
        self.entry = entry_step(playbook)
        self.final = final_step(playbook)
        self.is_lenient = playbook.executor.spec.is_lenient
        self._graph = Graph.of(playbook)
        self._definitions: dict[str, dict[str, Any]] = {
            name: codec.builtins(step) for name, step in self.steps.items()
        }
        self._names = {name: _names_of(self._definitions[name]) for name in self.steps}
        self._keys = Keys(playbook, self._definitions, self._names)
        self._bytes = {name: len(codec.encode(self._definitions[name])) for name in self.steps}

    def arcs(self, name: str) -> tuple[Arc, ...]:
        """Return the arcs as written."""
        following = self.steps[name].next
        return following.arcs if following is not None else ()

    def has_implicit_arc(self, name: str) -> bool:
        """Tell whether a step without arcs goes on to the final step by itself."""
        return self.final not in {None, name} and is_implicit(self.steps[name])

    def can_reach(self, source: str, target: str) -> bool:
        """Tell whether tokens may travel from one step to another, conditions ignored."""
        return self._graph.can_reach(source, target)

    def definition(self, name: str) -> dict[str, Any]:
        """Return a step as it travels to workers."""
        return self._definitions[name]

    def definition_bytes(self, name: str) -> int:
        """Return the size of a step as it travels."""
        return self._bytes[name]

    def names(self, name: str) -> frozenset[str]:
        """Return the top-level names that a step's templates and code may read."""
        return self._names[name]

    def keychain(self, name: str, *, is_first: bool) -> list[dict[str, Any]]:
        """Return the keychain entries, unrendered, that a step's command has to carry."""
        return self._keys.wanted(name, is_first=is_first)


def _names_of(definition: dict[str, Any]) -> frozenset[str]:
    found = set(_names_in(definition))
    for task in definition.get("tool", ()):
        fields = task.get("fields", {})
        code = fields.get("code")
        is_at_hand = "code_b64" not in fields and "script" not in fields
        if task.get("kind") == "python" and (not is_at_hand or "context" in str(code)):
            found.add("context")
    if definition.get("loop") is None and (definition.get("output") or {}).get("accumulate"):
        # What earlier runs of the step have collected goes on in the next.
        found.add(definition["step"])
    return frozenset(found)


def _names_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            try:
                yield from compile_value(value).names
            except TemplateError:
                # Reading the document compiled every template: this is prose that holds braces.
                return
        case dict():
            for item in value.values():
                yield from _names_in(item)
        case list() | tuple():
            for item in value:
                yield from _names_in(item)
        case _:
            return
