"""Results as they are kept: what a tool returned, task by task, or item by item."""

from typing import Any

import msgspec

from noetl_contracts.payloads import PayloadRef
from noetl_playbook.model.playbook import CanonicalValue


class TaskResult(CanonicalValue, frozen=True, kw_only=True):
    """The raw result of one task; with `error` it is a failure record.

    `names` holds what `select` and `accumulate` named. An http body is kept once, as `body`; the
    statements of a SQL task are kept as `commands` only when there are several.
    """

    kind: str
    raw: Any = None
    names: dict[str, Any] = msgspec.field(default_factory=dict)
    error: dict[str, Any] | None = None


class PipelineResult(CanonicalValue, frozen=True, kw_only=True):
    """The latest result of every executed task, in order; `last` is the last successful one."""

    tasks: dict[str, TaskResult] = msgspec.field(default_factory=dict)
    last: str | None = None


class LoopResult(CanonicalValue, frozen=True, kw_only=True):
    """The plain results of a loop's units in item order, and how they went."""

    results: list[Any] = msgspec.field(default_factory=list)
    stats: dict[str, Any] = msgspec.field(default_factory=dict)
    fanin: dict[str, Any] | None = None


class StoredResult(CanonicalValue, frozen=True, kw_only=True):
    """A result kept by reference; `fields` can be read without loading it.

    `length` is that of a result which is a bare list; a table says `reference.row_count`.
    `is_inline`: the playbook is not to know, as the result is small; only its event does.
    """

    reference: PayloadRef
    locator: str
    store: str = "auto"
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    preview: str | None = None
    columns: list[Any] | None = None
    shape: str = "pipeline"
    is_inline: bool = False
    length: int | None = None

    @property
    def item_count(self) -> int | None:
        """How many rows or values the result has, None where only loading it tells."""
        return self.length if self.reference.row_count is None else self.reference.row_count

    def as_mapping(self) -> dict[str, Any]:
        """Give the `_ref` that templates and tools see."""
        mapping = {
            "kind": "result_ref",
            "ref": self.locator,
            "store": self.store,
            "bytes": self.reference.payload_bytes,
            "sha256": self.reference.sha256,
            "media_type": self.reference.media_type,
        }
        if self.reference.row_count is not None:
            mapping["row_count"] = self.reference.row_count
        return mapping
