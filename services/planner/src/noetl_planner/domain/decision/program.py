"""A playbook prepared for decisions: arcs, definitions, and which steps use the keychain."""

from collections.abc import Iterator, Mapping
from typing import Any

from noetl_contracts import codec
from noetl_contracts.ids import CatalogId
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Arc, Playbook
from noetl_playbook.plan import (
    WorkflowGraph,
    find_final_step,
    get_entry_step,
    is_implicit,
    map_steps_by_name,
)
from noetl_playbook.templates.expressions import TemplateError, compile_value
from noetl_playbook.views.keychain import NAME, TOKEN

# A field of this name may name an entry in place of a stored credential.
_FIELDS = frozenset({"auth", "credential"})


class StepKeychains:
    """The keychain of a playbook, and the steps that may use it."""

    def __init__(
        self,
        playbook: Playbook,
        definitions: Mapping[str, dict[str, Any]],
        names: Mapping[str, frozenset[str]],
    ) -> None:
        self._entries: list[dict[str, Any]] = codec.to_builtins(playbook.keychain)
        self._is_required = any(
            coercion.coerce_boolean(entry.fields.get("required")) for entry in playbook.keychain
        )
        self._users = {
            name
            for name, definition in definitions.items()
            if names[name] & {NAME, TOKEN} or _has_credential_fields(definition)
        }

    def list_step_entries(self, step: str, *, is_first: bool) -> list[dict[str, Any]]:
        """Return the entries for a step's command; the first one has to check what is required."""
        if step in self._users or (is_first and self._is_required):
            return self._entries
        return []


def _has_credential_fields(value: Any) -> bool:
    if isinstance(value, dict):
        return any(
            (key in _FIELDS and item is not None) or _has_credential_fields(item)
            for key, item in value.items()
        )
    return isinstance(value, list | tuple) and any(_has_credential_fields(item) for item in value)


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
        self.steps = map_steps_by_name(playbook)
        self.order = {name: place for place, name in enumerate(self.steps)}
        self.entry = get_entry_step(playbook)
        self.final = find_final_step(playbook)
        self.is_lenient = playbook.executor.spec.is_lenient
        self._graph = WorkflowGraph.from_playbook(playbook)
        self._definitions: dict[str, dict[str, Any]] = {
            name: codec.to_builtins(step) for name, step in self.steps.items()
        }
        self._names = {name: _collect_names(self._definitions[name]) for name in self.steps}
        self._keys = StepKeychains(playbook, self._definitions, self._names)
        self._bytes = {name: len(codec.encode_json(self._definitions[name])) for name in self.steps}

    def list_arcs(self, name: str) -> tuple[Arc, ...]:
        """Return the arcs as written."""
        following = self.steps[name].next
        return following.arcs if following is not None else ()

    def has_implicit_arc(self, name: str) -> bool:
        """Tell whether a step without arcs goes on to the final step by itself."""
        return self.final not in {None, name} and is_implicit(self.steps[name])

    def can_reach(self, source: str, target: str) -> bool:
        """Tell whether tokens may travel from one step to another, conditions ignored."""
        return self._graph.can_reach(source, target)

    def get_step_definition(self, name: str) -> dict[str, Any]:
        """Return a step as it travels to workers."""
        return self._definitions[name]

    def get_definition_bytes(self, name: str) -> int:
        """Return the size of a step as it travels."""
        return self._bytes[name]

    def get_readable_names(self, name: str) -> frozenset[str]:
        """Return the top-level names that a step's templates and code may read."""
        return self._names[name]

    def list_keychain_entries(self, name: str, *, is_first: bool) -> list[dict[str, Any]]:
        """Return the keychain entries, unrendered, that a step's command has to carry."""
        return self._keys.list_step_entries(name, is_first=is_first)


def _collect_names(definition: dict[str, Any]) -> frozenset[str]:
    names = set(_iterate_names(definition))
    for task in definition.get("tool", ()):
        fields = task.get("fields", {})
        code = fields.get("code")
        is_at_hand = "code_b64" not in fields and "script" not in fields
        if task.get("kind") == "python" and (not is_at_hand or "context" in str(code)):
            names.add("context")
    if definition.get("loop") is None and (definition.get("output") or {}).get("accumulate"):
        # What earlier runs of the step have collected goes on in the next.
        names.add(definition["step"])
    return frozenset(names)


def _iterate_names(value: Any) -> Iterator[str]:
    match value:
        case str():
            try:
                yield from compile_value(value).names
            except TemplateError:
                # Reading the document compiled every template: this is prose that holds braces.
                return
        case dict():
            for item in value.values():
                yield from _iterate_names(item)
        case list() | tuple():
            for item in value:
                yield from _iterate_names(item)
        case _:
            return
