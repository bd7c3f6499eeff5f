"""A condition as it is asked: true or false, and of what was absent."""

from collections.abc import Callable
from typing import Any

from noetl_playbook.closures import Scope


class Condition:
    """A compiled condition; one that `needs_error` is false where `output` has none."""

    __slots__ = ("_judge", "names", "needs_error", "paths", "source")

    def __init__(
        self,
        source: Any,
        judge: Callable[[Scope], tuple[bool, str | None]],
        *,
        names: frozenset[str],
        paths: frozenset[str],
        needs_error: bool = False,
    ) -> None:
        self.source = source
        self.names = names
        self.paths = paths
        self.needs_error = needs_error
        self._judge = judge

    def holds(self, scope: Scope) -> bool:
        """Tell whether the condition is true; what is absent is false."""
        return self._judge(scope)[0]

    def judge(self, scope: Scope) -> tuple[bool, str | None]:
        """Tell whether it is true, and which path was absent if the whole of it was."""
        holds, absent = self._judge(scope)
        return holds, absent
