"""How a step's result travels in a result envelope, and becomes a view again.

Inline, `context["data"]` holds the kept form; by reference the payload holds it, and
`context["fields"]`, `store`, `preview` and `columns` what can be read without loading.
`context["shape"]` names the kept form.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from noetl_contracts import locators
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_playbook.handles import Handle, PayloadNeeded
from noetl_playbook.results import LoopResult, PipelineResult, Stored
from noetl_playbook.views import loop_view, pipeline_view

PIPELINE = "pipeline"
LOOP = "loop"

# Gives the decoded payload of a reference, or raises `PayloadNeeded`.
Find = Callable[[PayloadRef], Any]


def shape_of(kept: PipelineResult | LoopResult) -> str:
    """Name the kept form of a result."""
    return PIPELINE if isinstance(kept, PipelineResult) else LOOP


def inline(kept: PipelineResult | LoopResult) -> dict[str, Any]:
    """Write a small result as an envelope's context."""
    return {"shape": shape_of(kept), "data": msgspec.to_builtins(kept)}


def referenced(kept: PipelineResult | LoopResult, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Write the context of a result whose kept form is in the payload store."""
    return {"shape": shape_of(kept), "fields": dict(fields)}


def view(
    result: ResultEnvelope | None,
    *,
    execution_id: str,
    step: str,
    run: str,
    find: Find,
    error: Mapping[str, Any] | None = None,
) -> Any:
    """Show a carried result as templates see it; a large one is loaded when it is touched."""
    if result is None:
        return pipeline_view(PipelineResult())
    shape = result.context.get("shape", PIPELINE)
    if result.reference is None:
        return _shown(shape, result.context.get("data", {}), error)
    stored = Stored(
        reference=result.reference,
        locator=locators.result(execution_id, step, run),
        store=result.context.get("store", "auto"),
        fields=result.context.get("fields", {}),
        preview=result.context.get("preview"),
        columns=result.context.get("columns"),
    )
    return Handle(stored, load=lambda one: _shown(shape, find(one.reference), error), error=error)


def found_in(loaded: Mapping[str, Any]) -> Find:
    """Look payloads up by digest; ask the caller for what is not there."""

    def find(reference: PayloadRef) -> Any:
        if reference.sha256 in loaded:
            return loaded[reference.sha256]
        raise PayloadNeeded(Stored(reference=reference, locator=reference.uri))

    return find


def _shown(shape: str, data: Any, error: Mapping[str, Any] | None) -> Any:
    if shape == LOOP:
        return loop_view(msgspec.convert(data, LoopResult), error=error)
    return pipeline_view(msgspec.convert(data, PipelineResult)).settled()
