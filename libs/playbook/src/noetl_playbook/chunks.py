"""What templates may name of a chunk: in its arcs, and where its activations run."""

from collections.abc import Callable
from typing import Any

from noetl_contracts.chunks import Chunk
from noetl_contracts.payloads import PayloadRef
from noetl_playbook.envelope import Output
from noetl_playbook.handles import Handle
from noetl_playbook.results import Stored


def names(chunk: Chunk, find: Callable[[PayloadRef], Any]) -> dict[str, Any]:
    """Return `chunk` and `output`; the rows are loaded when they are touched."""
    stored = Stored(reference=chunk.ref, locator=chunk.ref.uri)
    rows = Handle(stored, load=lambda one: find(one.reference))
    return {
        "chunk": {
            "index": chunk.index,
            "row_count": chunk.row_count,
            "has_more": chunk.has_more,
            "ref": stored.as_mapping(),
            "rows": rows,
        },
        "output": Output({"rows": rows, "row_count": chunk.row_count}),
    }
