"""Words that equal other words: statuses, and the names of boundary events."""

from typing import Final

_STATUSES = {
    **dict.fromkeys(("ok", "success", "completed", "done"), "ok"),
    **dict.fromkeys(("error", "failed", "failure"), "error"),
}

DONE: Final = "call.done"
ERROR: Final = "call.error"
LOOP_DONE: Final = "loop.done"
LOOP_FAILED: Final = "loop.failed"
PARTIAL: Final = "call.partial"

ALSO_KNOWN_AS: dict[str, frozenset[str]] = {
    DONE: frozenset({"step.exit", "step.done", "call.success"}),
    ERROR: frozenset({"step.failed", "step.error"}),
    LOOP_DONE: frozenset({DONE, "step.exit", "step.done"}),
    LOOP_FAILED: frozenset({ERROR, "step.failed", "step.error"}),
    PARTIAL: frozenset(),
}
BOUNDARY_EVENTS = frozenset(ALSO_KNOWN_AS).union(*ALSO_KNOWN_AS.values())


class AliasedText(str):
    """Text that equals its aliases too; it leaves a template as itself."""

    __slots__ = ("_equals",)
    _equals: frozenset[str]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and (str.__eq__(self, other) or self._matches(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    # Set and mapping lookups go by the word itself.
    __hash__ = str.__hash__

    def _matches(self, other: str) -> bool:
        return other in self._equals


class Status(AliasedText):
    """`ok` or `error`; equal to every word for the same outcome, ignoring case."""

    __slots__ = ()

    def _matches(self, other: str) -> bool:
        return _STATUSES.get(other.lower()) == str.__str__(self)


OK: Final = Status("ok")
FAILED: Final = Status("error")


def event_name(name: str) -> AliasedText:
    """Make the name of a boundary event, equal to its aliases."""
    text = AliasedText(name)
    text._equals = ALSO_KNOWN_AS.get(name, frozenset())  # noqa: SLF001 (own kind)
    return text
