"""The collection of a loop: resolved once, and kept so that any part of it is cheap to read."""

from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.payloads import EVENT_INLINE_BYTES_MAX, PayloadRef
from noetl_contracts.slicing import Form, ListPart, PartList, encoded_parts
from noetl_planner.domain import evaluation, limits
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Refusal
from noetl_playbook import lasting
from noetl_playbook.expressions import TemplateError, compile_value, located
from noetl_playbook.handles import Handle
from noetl_playbook.lookup import Lookup
from noetl_playbook.model import Loop
from noetl_playbook.scope import Scope
from noetl_playbook.sources import NoCollectionError, rows_of
from noetl_playbook.undefined import UndefinedUsedError

INLINE_BYTES_MAX = EVENT_INLINE_BYTES_MAX // 2
NULL_NOTE = "loop_source_null"

_FIELD = "loop.in"


class Source(Struct, frozen=True, kw_only=True):
    """A fixed collection: its items, or what refers to them."""

    form: Form
    total: int
    items: list[Any] = []
    ref: PayloadRef | None = None
    notes: list[str] = []


def find(draft: Draft, loop: Loop, names: Scope, *, step: str) -> Source:
    """Render a loop's `in` and read it as a list (language, 7.1); raises `Refusal`."""
    found = _rendered(loop.in_, names, step)
    if isinstance(found, Handle) and found.stored.count is not None:
        reference = found.stored.reference
        total = len(found)
        _check(total, draft.limits.reference_items_max, step)
        return Source(form=Form(found.stored.shape), total=total, ref=reference)
    if found is None:
        return Source(form=Form.LIST, total=0, notes=[NULL_NOTE])
    if isinstance(found, int) and not isinstance(found, bool):
        _check(found, draft.limits.items_max, step)
        return Source(form=Form.RANGE, total=max(0, found))
    try:
        with evaluation.bounded(draft, step=step, field=_FIELD):
            items = rows_of(found)
    except NoCollectionError as error:
        raise _no_collection(str(error), step) from error
    _check(len(items), draft.limits.items_max, step)
    return Source(form=Form.LIST, total=len(items), items=items)


def items_of(draft: Draft, source: Source) -> list[Any]:
    """Return the items themselves; for those in a payload raises as `evaluation.find` says."""
    if source.form is Form.RANGE:
        return list(range(source.total))
    if source.ref is None:
        return source.items
    return evaluation.rows_at(draft, source.form, source.ref)


def keep(draft: Draft, source: Source, *, may_inline: bool) -> dict[str, Any]:
    """Return the fields of `LoopStarted` that tell where the items are, storing them if need be."""
    if source.ref is not None or (may_inline and source.form is Form.RANGE):
        return {"collection_ref": source.ref, "collection_form": source.form}
    parts = list(encoded_parts(items_of(draft, source)))
    if may_inline and len(parts) == 1 and len(parts[0][2]) <= INLINE_BYTES_MAX:
        return {"collection": source.items}
    refs = [
        ListPart(start=start, end=end, ref=draft.keep_bytes(data, row_count=end - start))
        for start, end, data in parts
    ]
    if len(refs) == 1:
        return {"collection_ref": refs[0].ref}
    manifest = PartList(total=source.total, parts=refs)
    reference = draft.keep_bytes(codec.encode(manifest), row_count=source.total)
    return {"collection_ref": reference, "collection_form": Form.PARTS}


def _rendered(value: Any, names: Scope, step: str) -> Any:
    evaluation.begin_render(names)
    try:
        found = compile_value(value).evaluate(names)
        return found if isinstance(found, Lookup) else lasting.lasting(found, value)
    except TemplateError as error:
        text = located(error, step=step, field=_FIELD)
        is_undefined = isinstance(error.__cause__, UndefinedUsedError)
        raise Refusal.of("loop_source" if is_undefined else error.kind, step, text) from error


def _check(count: int, count_max: int, step: str) -> None:
    if count > count_max:
        raise Refusal.over(
            limits.MAX_ITEMS,
            step,
            f"step {step!r}, field '{_FIELD}': {count} items, {count_max} is the limit: "
            "let a step return the rows and loop over its result, or use a cursor",
        )


def _no_collection(what: str, step: str) -> Refusal:
    return Refusal.of(
        "loop_source",
        step,
        f"step {step!r}, field '{_FIELD}': {what} is not a collection: "
        "give a list, a mapping, rows or a whole number",
    )
