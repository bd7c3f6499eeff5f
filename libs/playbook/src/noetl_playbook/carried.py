"""How a step's result travels in a result envelope, and becomes a view again.

Inline, `context["data"]` holds the kept form; by reference the payload holds it, and
`context["fields"]`, `store`, `preview`, `columns` and `length` what can be read without loading,
and `is_inline` says that the playbook sees it as if it were inline.
`context["shape"]` names the kept form.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from noetl_contracts import codec, locators
from noetl_contracts.errors import ResultMalformed
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_playbook import error_view, forms, parts
from noetl_playbook.handles import Handle, PayloadNeeded
from noetl_playbook.parts import Fanin, Part
from noetl_playbook.results import LoopResult, PipelineResult, Stored
from noetl_playbook.sources import rows_of
from noetl_playbook.views import loop_view, pipeline_view

PIPELINE = "pipeline"
LOOP = "loop"

T = TypeVar("T")

# Gives the decoded payload of a reference, or raises `PayloadNeeded`.
Find = Callable[[PayloadRef], Any]


def shape_of(kept: PipelineResult | LoopResult) -> str:
    """Name the kept form of a result."""
    return PIPELINE if isinstance(kept, PipelineResult) else LOOP


def inline(kept: PipelineResult | LoopResult) -> dict[str, Any]:
    """Write a small result as an envelope's context."""
    return {"shape": shape_of(kept), "data": msgspec.to_builtins(kept)}


def referenced(
    kept: PipelineResult | LoopResult, fields: Mapping[str, Any], *, is_inline: bool = False
) -> dict[str, Any]:
    """Write the context of a result whose kept form is in the payload store.

    One that is `is_inline` is stored because of its event alone, and the playbook sees no handle.
    """
    about = {"is_inline": True} if is_inline else {}
    return {"shape": shape_of(kept), "fields": dict(fields), **about}


def view(
    result: ResultEnvelope | None,
    *,
    execution_id: str,
    step: str,
    run: str,
    find: Find,
    error: Mapping[str, Any] | None = None,
) -> Any:
    """Show a carried result as templates see it; a large one is loaded when it is touched.

    With `error` it is the failure record of a step that failed, whatever its tasks came to.
    """
    if result is None:
        return pipeline_view(PipelineResult(), error=error)
    shape = result.context.get("shape", PIPELINE)
    if result.reference is None:
        return _shown(shape, result.context.get("data", {}), error, find)
    fields = result.context.get("fields", {})
    stored = Stored(
        reference=result.reference,
        locator=locators.result(execution_id, step, run),
        store=result.context.get("store", "auto"),
        fields=_with_fanin(fields, find) if shape == LOOP else fields,
        preview=result.context.get("preview"),
        columns=result.context.get("columns"),
        shape=shape,
        length=result.context.get("length"),
        is_inline=result.context.get("is_inline", False),
    )
    return Handle(
        stored,
        load=lambda one: _shown(shape, find(one.reference), error, find),
        error=error_view.found(error),
    )


def read_as(data: Any, kind: type[T]) -> T:
    """Give what was loaded the form that it was stored in; raises `ResultMalformed`."""
    try:
        return codec.convert(data, kind)
    except msgspec.ValidationError as failure:
        raise ResultMalformed(f"what is stored as a result is none: {failure}") from failure


def found_in(loaded: Mapping[str, Any]) -> Find:
    """Look payloads up by digest; ask the caller for what is not there."""

    def find(reference: PayloadRef) -> Any:
        if reference.sha256 in loaded:
            return loaded[reference.sha256]
        raise PayloadNeeded(Stored(reference=reference, locator=reference.uri))

    return find


def plain(result: ResultEnvelope, find: Find) -> Any:
    """Return the plain form of a carried result; a frame's is `{results, stats}`."""
    data = result.context.get("data", {}) if result.reference is None else find(result.reference)
    shape = result.context.get("shape", PIPELINE)
    if shape == LOOP:
        kept = read_as(data, LoopResult)
        return {"results": kept.results, "stats": kept.stats}
    return forms.plain(_shown(shape, data, None, find))


def rows(shape: str, data: Any) -> list[Any]:
    """Return the list that a kept result means as a loop's collection."""

    def refuse(reference: PayloadRef) -> Any:
        raise PayloadNeeded(Stored(reference=reference, locator=reference.uri))

    return rows_of(_shown(shape, data, None, refuse).settled())


def part_data(part: Part, find: Find) -> Any:
    """Return the plain output of a part; a failed one has its failure record."""
    error = part.error
    if part.result is None:
        return None if error is None else {"status": "error", "error": error_view.shown(error)}
    shown = plain(part.result, find)
    if part.result.context.get("shape") == LOOP:
        shown = shown["results"]
        return shown[0] if part.is_single and shown else shown
    if error is None:
        return shown
    failure = {"status": "error", "error": error_view.shown(error)}
    return {**shown, **failure} if isinstance(shown, dict) else failure


def fanin(counters: Mapping[str, Any], find: Find) -> Fanin:
    """Show a loop's outcome."""

    def list_parts() -> list[Part]:
        reference = parts.reference_of(counters)
        if reference is None:
            return parts.inline_of(counters)
        return read_as(find(reference), list[Part])

    return Fanin(counters, list_parts=list_parts, open_part=lambda part: part_data(part, find))


def _with_fanin(fields: Mapping[str, Any], find: Find) -> dict[str, Any]:
    shown = dict(fields)
    if isinstance(shown.get("fanin"), Mapping):
        shown["fanin"] = fanin(shown["fanin"], find)
    return shown


def _shown(shape: str, data: Any, error: Mapping[str, Any] | None, find: Find) -> Any:
    if shape == LOOP:
        kept = read_as(data, LoopResult)
        outcome = None if kept.fanin is None else fanin(kept.fanin, find)
        return loop_view(kept, error=error, fanin=outcome)
    return pipeline_view(read_as(data, PipelineResult), error=error)
