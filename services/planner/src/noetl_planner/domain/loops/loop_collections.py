"""The collection of a loop: resolved once, and kept so that any part of it is cheap to read."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import (
    CollectionCut,
    CollectionForm,
    CollectionLayout,
    ListPart,
    PartList,
    encode_list_parts,
)
from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import EVENT_INLINE_BYTES_MAX, PayloadRef
from noetl_planner.domain.decision import evaluation, limits
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal
from noetl_playbook.model.playbook import FanoutOpts, Frame, Loop
from noetl_playbook.templates import json_render
from noetl_playbook.templates.expressions import TemplateError, compile_value, describe_location
from noetl_playbook.templates.lookup import Lookup
from noetl_playbook.templates.scope import TemplateScope
from noetl_playbook.templates.undefined import UndefinedUsedError
from noetl_playbook.views.loop_parts import NoCollectionError, list_collection_items
from noetl_playbook.views.payload_handle import PayloadHandle

INLINE_BYTES_MAX = EVENT_INLINE_BYTES_MAX // 2
NULL_NOTE = "loop_source_null"

_FIELD = "loop.in"
_ROWS_MAX = 10_000_000
_HASHED_BYTES_MAX = 16 * 1024 * 1024


class LoopCollection(Struct, frozen=True, kw_only=True):
    """A fixed collection: its items, or what refers to them."""

    form: CollectionForm
    total: int
    items: list[Any] = []
    ref: PayloadRef | None = None
    notes: list[str] = []


def render_collection(
    draft: DecisionDraft, loop: Loop, names: TemplateScope, *, step: str
) -> LoopCollection:
    """Render a loop's `in` and read it as a list (language, 7.1); raises `Refusal`."""
    source = _render_source(loop.in_, names, step)
    if isinstance(source, PayloadHandle) and source.stored.item_count is not None:
        reference = source.stored.reference
        total = len(source)
        _check_item_count(total, draft.limits.reference_items_max, step)
        return LoopCollection(form=CollectionForm(source.stored.shape), total=total, ref=reference)
    if source is None:
        return LoopCollection(form=CollectionForm.LIST, total=0, notes=[NULL_NOTE])
    if isinstance(source, int) and not isinstance(source, bool):
        if source < 0:
            raise _no_collection_refusal(f"the negative number {source}", step)
        _check_item_count(source, draft.limits.items_max, step)
        return LoopCollection(form=CollectionForm.RANGE, total=source)
    try:
        with evaluation.bounded_reads(draft, step=step, field=_FIELD):
            items = list_collection_items(source)
    except NoCollectionError as error:
        raise _no_collection_refusal(str(error), step) from error
    _check_item_count(len(items), draft.limits.items_max, step)
    return LoopCollection(form=CollectionForm.LIST, total=len(items), items=items)


def read_items(draft: DecisionDraft, source: LoopCollection) -> list[Any]:
    """Return the items themselves; for those in a payload raises as `evaluation.find` says."""
    if source.form is CollectionForm.RANGE:
        return list(range(source.total))
    if source.ref is None:
        return source.items
    return evaluation.read_stored_rows(draft, source.form, source.ref)


def store_collection(
    draft: DecisionDraft, source: LoopCollection, *, may_inline: bool
) -> dict[str, Any]:
    """Return the fields of `LoopStarted` that tell where the items are, storing them if need be."""
    if source.ref is not None or (may_inline and source.form is CollectionForm.RANGE):
        return {"collection_ref": source.ref, "collection_form": source.form}
    parts = list(encode_list_parts(read_items(draft, source)))
    if may_inline and len(parts) == 1 and len(parts[0][2]) <= INLINE_BYTES_MAX:
        return {"collection": source.items}
    refs = [
        ListPart(start=start, end=end, ref=draft.store_bytes(data, row_count=end - start))
        for start, end, data in parts
    ]
    if len(refs) == 1:
        return {"collection_ref": refs[0].ref}
    manifest = PartList(total=source.total, parts=refs)
    reference = draft.store_bytes(codec.encode_json(manifest), row_count=source.total)
    return {"collection_ref": reference, "collection_form": CollectionForm.PARTS}


def _render_source(value: Any, names: TemplateScope, step: str) -> Any:
    evaluation.begin_render(names)
    try:
        rendered_source = compile_value(value).evaluate(names)
        return (
            rendered_source
            if isinstance(rendered_source, Lookup)
            else json_render.keep_as_json(rendered_source, value)
        )
    except TemplateError as error:
        text = describe_location(error, step=step, field=_FIELD)
        is_undefined = isinstance(error.__cause__, UndefinedUsedError)
        raise Refusal.for_step("loop_source" if is_undefined else error.kind, step, text) from error


def _check_item_count(count: int, count_max: int, step: str) -> None:
    if count > count_max:
        raise Refusal.for_limit(
            limits.MAX_ITEMS,
            step,
            f"step {step!r}, field '{_FIELD}': {count} items, {count_max} is the limit: "
            "let a step return the rows and loop over its result, or use a cursor",
        )


def _no_collection_refusal(label: str, step: str) -> Refusal:
    return Refusal.for_step(
        "loop_source",
        step,
        f"step {step!r}, field '{_FIELD}': {label} is not a collection: "
        "give a list, a mapping, rows or a whole number from 0",
    )


def cut_collection(
    draft: DecisionDraft,
    loop: Loop,
    names: TemplateScope,
    source: LoopCollection,
    policy: Mapping[str, Any],
    *,
    step: str,
) -> tuple[CollectionCut, LoopCollection]:
    """Cut a collection as its mode wants; hashing gives the items another order."""
    if loop.spec.mode != "fanout":
        return cut_by_size(source.total, int(policy.get("max_rows", Frame().max_rows))), source
    fanout = loop.spec.fanout or FanoutOpts()
    if fanout.partitions is None:
        if fanout.partition_by:
            raise Refusal.for_step(
                "validation",
                step,
                f"step {step!r}, field 'loop.spec.fanout': partition_by needs 'partitions'",
            )
        size = _render_fanout_number(fanout.shard_size, names, "shard_size", _ROWS_MAX, step)
        return _check_shard_count(draft, cut_by_size(source.total, size), step), source
    partitions = _render_fanout_number(
        fanout.partitions, names, "partitions", draft.limits.shards_max, step
    )
    if fanout.partition_by:
        _check_hash_size(source, step)
        with evaluation.bounded_reads(draft, step=step, field="loop.spec.fanout.partition_by"):
            return _cut_by_hash(draft, source, fanout.partition_by, partitions)
    # A shard without items has nothing to do, so there are never more shards than items.
    return CollectionCut(items=source.total, units=min(partitions, source.total)), source


def cut_by_size(items: int, size: int) -> CollectionCut:
    """Cut into contiguous units of `size` items, the last one as it comes."""
    return CollectionCut(items=items, units=-(-items // size), size=size)


def get_unit_bounds(draft: DecisionDraft, of: CollectionCut, unit: int) -> tuple[int, int]:
    """Return where a unit's items begin and end; raises `PayloadNeeded` for a layout."""
    offsets = None if of.layout_ref is None else draft.get_stored_value(of.layout_ref)["offsets"]
    return of.get_unit_bounds(unit, offsets)


def _render_fanout_number(value: Any, names: TemplateScope, key: str, most: int, step: str) -> int:
    field = f"loop.spec.fanout.{key}"
    rendered = evaluation.render_value(value, names, step=step, field=field)
    return evaluation.check_bounded_number(rendered, step=step, field=field, least=1, most=most)


def _check_shard_count(
    draft: DecisionDraft, collection_cut: CollectionCut, step: str
) -> CollectionCut:
    if collection_cut.units > draft.limits.shards_max:
        raise Refusal.for_step(
            "limit",
            step,
            f"step {step!r}, field 'loop.spec.fanout': {collection_cut.units} shards, "
            f"{draft.limits.shards_max} is the limit: raise shard_size",
        )
    return collection_cut


def _check_hash_size(source: LoopCollection, step: str) -> None:
    """Refuse to hash what is too large for the planner to read."""
    if source.ref is None or source.ref.payload_bytes <= _HASHED_BYTES_MAX:
        return
    raise Refusal(
        ErrorObject(
            kind="payload_too_large",
            code="TOO_LARGE",
            step=step,
            message=f"step {step!r}, field 'loop.spec.fanout.partition_by': the rows take "
            f"{source.ref.payload_bytes} bytes, {_HASHED_BYTES_MAX} is the limit for hashing: "
            "order the rows where they are made, and use partitions alone",
        )
    )


def _cut_by_hash(
    draft: DecisionDraft, source: LoopCollection, fields: tuple[str, ...], partitions: int
) -> tuple[CollectionCut, LoopCollection]:
    """Group items by the hash of their fields; partitions that nothing falls into are left out.

    Each value has a partition of its own where there are enough of them: hashes of few values
    often meet in one partition, and leave others empty.
    """
    items = read_items(draft, source)
    hashes = [_hash_fields(item, fields) for item in items]
    distinct = sorted(set(hashes))
    own = (
        {item_hash: index for index, item_hash in enumerate(distinct)}
        if len(distinct) <= partitions
        else {}
    )
    places: dict[int, list[int]] = {}
    for place, item_hash in enumerate(hashes):
        places.setdefault(own.get(item_hash, item_hash % partitions), []).append(place)
    order: list[int] = []
    offsets = [0]
    for partition in sorted(places):
        order += places[partition]
        offsets.append(len(order))
    layout = draft.store_bytes(codec.encode_json(CollectionLayout(offsets=offsets, order=order)))
    collection_cut = CollectionCut(items=len(items), units=len(places), layout_ref=layout)
    grouped = [items[place] for place in order]
    return collection_cut, LoopCollection(
        form=CollectionForm.LIST, total=len(items), items=grouped, notes=source.notes
    )


def _hash_fields(item: Any, fields: tuple[str, ...]) -> int:
    """Hash what a row's fields hold: the same values have the same hash for ever."""
    data = codec.encode_canonical([_read_field(item, field) for field in fields])
    return int.from_bytes(codec.digest_bytes(data)[:8], "big")


def _read_field(item: Any, path: str) -> Any:
    for key in path.split("."):
        item = item.get(key) if isinstance(item, Mapping) else None
    return item
