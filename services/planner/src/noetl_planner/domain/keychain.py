"""Which commands carry the playbook's keychain: definitions alone, which a worker resolves."""

from collections.abc import Mapping
from typing import Any

from noetl_contracts import codec
from noetl_playbook import coercion
from noetl_playbook.keychain import NAME, TOKEN
from noetl_playbook.model import Playbook

# A field of this name may name an entry in place of a stored credential.
_FIELDS = frozenset({"auth", "credential"})


class Keys:
    """The keychain of a playbook, and the steps that may use it."""

    def __init__(
        self,
        playbook: Playbook,
        definitions: Mapping[str, dict[str, Any]],
        names: Mapping[str, frozenset[str]],
    ) -> None:
        self._entries: list[dict[str, Any]] = codec.builtins(playbook.keychain)
        self._is_required = any(
            coercion.boolean(entry.fields.get("required")) for entry in playbook.keychain
        )
        self._users = {
            name
            for name, definition in definitions.items()
            if names[name] & {NAME, TOKEN} or _names_credentials(definition)
        }

    def wanted(self, step: str, *, is_first: bool) -> list[dict[str, Any]]:
        """Return the entries for a step's command; the first one has to check what is required."""
        if step in self._users or (is_first and self._is_required):
            return self._entries
        return []


def _names_credentials(value: Any) -> bool:
    if isinstance(value, dict):
        return any(
            (key in _FIELDS and item is not None) or _names_credentials(item)
            for key, item in value.items()
        )
    return isinstance(value, list | tuple) and any(_names_credentials(item) for item in value)
