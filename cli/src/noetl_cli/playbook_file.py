"""A file of playbooks as a planner takes it: its text, and the scripts that lie beside it."""

from typing import Any

from msgspec import Struct


class PlaybookFile(Struct, frozen=True, kw_only=True):
    """A checked text and the scripts that its playbooks name, by their names."""

    text: str
    script_by_name: dict[str, str] = {}

    def as_body(self) -> dict[str, Any]:
        """Return the fields of a request."""
        # Planners of before do not know scripts.
        scripts = {"scripts": self.script_by_name} if self.script_by_name else {}
        return {"content": self.text, **scripts}
