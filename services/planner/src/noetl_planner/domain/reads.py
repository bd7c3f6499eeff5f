"""What a decision looks into of what is kept by reference: bounded for a render, and for a fact."""

from noetl_contracts.payloads import PayloadRef
from noetl_playbook.templates import rendering
from noetl_playbook.templates.rendering import LimitExceededError


class Reads:
    """Counts each value once for a render and once for a fact, however often it is touched.

    What is in memory counts like all else: the same fact leads to the same wherever it is decided.
    """

    def __init__(self, *, bytes_max: int, values_max: int) -> None:
        self._bytes_max = bytes_max
        self._values_max = values_max
        self._of_render: dict[str, int] = {}
        self._of_fact: dict[str, int] = {}

    def begin_fact(self) -> None:
        """Count anew: what facts that came together lead to is each one's own."""
        self._of_render.clear()
        self._of_fact.clear()

    def begin_render(self) -> None:
        """Count anew what one template looks into."""
        self._of_render.clear()

    def admit(self, reference: PayloadRef) -> None:
        """Admit a value that a template looks into; raises `LimitExceededError`."""
        if reference.sha256 not in self._of_render:
            self._of_render[reference.sha256] = reference.payload_bytes
            found = sum(self._of_render.values())
            if found > rendering.PLANNER.payload_bytes:
                text = rendering.payload_too_large(found, rendering.PLANNER)
                raise LimitExceededError(text, kind="payload_too_large")
        self.admit_together(reference)

    def admit_together(self, reference: PayloadRef) -> None:
        """Admit a value beside all others of the fact; raises `LimitExceededError`."""
        if reference.sha256 in self._of_fact:
            return
        self._of_fact[reference.sha256] = reference.payload_bytes
        found = sum(self._of_fact.values())
        if found > self._bytes_max:
            text = f"{found} bytes of values kept by reference, {self._bytes_max} is the limit"
            raise LimitExceededError(_together(text), kind="payload_too_large")
        if len(self._of_fact) > self._values_max:
            text = f"more than {self._values_max} values kept by reference"
            raise LimitExceededError(_together(text))


def _together(text: str) -> str:
    return (
        f"what follows from one event looks into {text}: name fewer of them in templates of the "
        "planner, a loop's result instead of its items', and let tasks read the others"
    )
