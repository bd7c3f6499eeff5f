"""How a step's result travels in a result envelope, and becomes a view again.

Inline, `context["data"]` holds the kept form; by reference the payload holds it, and
`context["fields"]`, `store`, `preview`, `columns` and `length` what can be read without loading,
and `is_inline` says that the playbook sees it as if it were inline.
`context["shape"]` names the kept form.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from noetl_contracts import codec, locators
from noetl_contracts.errors import ResultMalformed
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_playbook.model.playbook import CanonicalValue
from noetl_playbook.templates import output_forms
from noetl_playbook.views import error_view, loop_parts
from noetl_playbook.views.loop_parts import PARTS, FaninView, LoopPart, list_collection_items
from noetl_playbook.views.payload_handle import PayloadHandle, PayloadNeeded
from noetl_playbook.views.result_view import view_loop, view_pipeline
from noetl_playbook.views.results import LoopResult, PipelineResult, StoredResult

PIPELINE = "pipeline"
LOOP = "loop"

T = TypeVar("T")

# Gives the decoded payload of a reference, or raises `PayloadNeeded`.
Find = Callable[[PayloadRef], Any]


def name_shape(result: PipelineResult | LoopResult) -> str:
    """Name the kept form of a result."""
    return PIPELINE if isinstance(result, PipelineResult) else LOOP


def build_inline_context(result: PipelineResult | LoopResult) -> dict[str, Any]:
    """Write a small result as an envelope's context."""
    return {"shape": name_shape(result), "data": msgspec.to_builtins(result)}


def build_reference_context(
    result: PipelineResult | LoopResult, fields: Mapping[str, Any], *, is_inline: bool = False
) -> dict[str, Any]:
    """Write the context of a result whose kept form is in the payload store.

    One that is `is_inline` is stored because of its event alone, and the playbook sees no handle.
    """
    about = {"is_inline": True} if is_inline else {}
    return {"shape": name_shape(result), "fields": dict(fields), **about}


def view_result(
    result: ResultEnvelope | None,
    *,
    execution_id: str,
    step: str,
    run: str,
    find: Find,
    error: Mapping[str, Any] | None = None,
) -> Any:
    """Show a carried result as templates see it; a large one is loaded when it is touched.

    With `error` it is the failure record of a step that failed, regardless of its tasks' results.
    """
    if result is None:
        return view_pipeline(PipelineResult(), error=error)
    shape = result.context.get("shape", PIPELINE)
    if result.reference is None:
        return _view_shape(shape, result.context.get("data", {}), error, find)
    fields = result.context.get("fields", {})
    stored = StoredResult(
        reference=result.reference,
        locator=locators.build_result_locator(execution_id, step, run),
        store=result.context.get("store", "auto"),
        fields=_add_fanin(fields, find) if shape == LOOP else fields,
        preview=result.context.get("preview"),
        columns=result.context.get("columns"),
        shape=shape,
        length=result.context.get("length"),
        is_inline=result.context.get("is_inline", False),
    )
    return PayloadHandle(
        stored,
        load=lambda one: _view_shape(shape, find(one.reference), error, find),
        error=error_view.show_error_record(error),
    )


def convert_stored(data: Any, kind: type[T]) -> T:
    """Give what was loaded the form that it was stored in; raises `ResultMalformed`."""
    try:
        return codec.convert_value(data, kind)
    except msgspec.ValidationError as failure:
        raise ResultMalformed(f"what is stored as a result is none: {failure}") from failure


def make_payload_finder(loaded: Mapping[str, Any]) -> Find:
    """Look payloads up by digest; ask the caller for what is not there."""

    def find_payload(reference: PayloadRef) -> Any:
        if reference.sha256 in loaded:
            return loaded[reference.sha256]
        raise PayloadNeeded(StoredResult(reference=reference, locator=reference.uri))

    return find_payload


def build_plain_result(result: ResultEnvelope, find: Find) -> Any:
    """Return the plain form of a carried result; a frame's is `{results, stats}`."""
    data = result.context.get("data", {}) if result.reference is None else find(result.reference)
    shape = result.context.get("shape", PIPELINE)
    if shape == LOOP:
        loop_result = convert_stored(data, LoopResult)
        return {"results": loop_result.results, "stats": loop_result.stats}
    return output_forms.to_plain(_view_shape(shape, data, None, find))


def list_result_rows(shape: str, data: Any) -> list[Any]:
    """Return the list that a kept result means as a loop's collection."""

    def refuse_payload(reference: PayloadRef) -> Any:
        raise PayloadNeeded(StoredResult(reference=reference, locator=reference.uri))

    return list_collection_items(_view_shape(shape, data, None, refuse_payload).settle_view())


def build_part_output(part: LoopPart, find: Find) -> Any:
    """Return the plain output of a part; a failed one has its failure record."""
    error = part.error
    if part.result is None:
        return None if error is None else {"status": "error", "error": error_view.show_error(error)}
    plain_result = build_plain_result(part.result, find)
    if part.result.context.get("shape") == LOOP:
        plain_result = plain_result["results"]
        return plain_result[0] if part.is_single and plain_result else plain_result
    if error is None:
        return plain_result
    failure = {"status": "error", "error": error_view.show_error(error)}
    return {**plain_result, **failure} if isinstance(plain_result, dict) else failure


def view_fanin(counters: Mapping[str, Any], find: Find) -> FaninView:
    """Show a loop's outcome."""

    def list_parts() -> list[LoopPart]:
        reference = loop_parts.find_parts_reference(counters)
        if reference is None:
            return loop_parts.list_inline_parts(counters)
        return convert_stored(find(reference), list[LoopPart])

    return FaninView(
        counters, list_parts=list_parts, open_part=lambda part: build_part_output(part, find)
    )


def _add_fanin(fields: Mapping[str, Any], find: Find) -> dict[str, Any]:
    plain_fields = dict(fields)
    if isinstance(plain_fields.get("fanin"), Mapping):
        plain_fields["fanin"] = view_fanin(plain_fields["fanin"], find)
    return plain_fields


def _view_shape(shape: str, data: Any, error: Mapping[str, Any] | None, find: Find) -> Any:
    if shape == LOOP:
        loop_result = convert_stored(data, LoopResult)
        outcome = None if loop_result.fanin is None else view_fanin(loop_result.fanin, find)
        return view_loop(loop_result, error=error, fanin=outcome)
    return view_pipeline(convert_stored(data, PipelineResult), error=error)


_FANIN = "fanin"


class _EnvelopeContext(CanonicalValue, frozen=True, kw_only=True):
    """What `carried` and its readers take out of a context; what else is there nobody reads."""

    shape: Literal["pipeline", "loop"] = "pipeline"
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    store: str = "auto"
    preview: str | None = None
    columns: list[Any] | None = None
    length: int | None = None
    is_inline: bool = False
    notes: list[str] = msgspec.field(default_factory=list)
    ttl_s: float | None = None


class _LoopParts(CanonicalValue, frozen=True, kw_only=True):
    """Where a loop's outcome keeps its parts."""

    ref: PayloadRef | None = None
    inline: list[LoopPart] = msgspec.field(default_factory=list)


def check_result_envelope(result: ResultEnvelope) -> None:
    """Raise `ResultMalformed` for an envelope that cannot be shown as a result.

    What is kept by reference is judged when it is read.
    """
    try:
        context = codec.convert_value(result.context, _EnvelopeContext)
        is_loop = context.shape == LOOP
        if is_loop:
            _check_fanin(context.fields.get(_FANIN))
        if result.reference is None:
            data = result.context.get("data", {})
            value = codec.convert_value(data, LoopResult if is_loop else PipelineResult)
            if isinstance(value, LoopResult):
                _check_fanin(value.fanin)
    except msgspec.ValidationError as failure:
        shape = str(result.context.get("shape", PIPELINE))[:40]
        raise ResultMalformed(f"this is no result of the shape {shape!r}: {failure}") from failure


def _check_fanin(counters: Any) -> None:
    if isinstance(counters, dict):
        codec.convert_value(counters.get(PARTS, {}), _LoopParts)
