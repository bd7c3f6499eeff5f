"""How a collection is cut into units: chunks of a size, or shards of a fan-out (language, 7.7)."""

from collections.abc import Mapping
from typing import Any

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.slicing import Cut, Form, Layout
from noetl_planner.domain import evaluation, sources
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Refusal
from noetl_planner.domain.sources import Source
from noetl_playbook.model import FanoutOpts, Frame, Loop
from noetl_playbook.scope import Scope

_ROWS_MAX = 10_000_000
_HASHED_BYTES_MAX = 16 * 1024 * 1024


def cut(
    draft: Draft, loop: Loop, names: Scope, source: Source, policy: Mapping[str, Any], *, step: str
) -> tuple[Cut, Source]:
    """Cut a collection as its mode wants; hashing gives the items another order."""
    if loop.spec.mode != "fanout":
        return by_size(source.total, int(policy.get("max_rows", Frame().max_rows))), source
    how = loop.spec.fanout or FanoutOpts()
    if how.partitions is None:
        if how.partition_by:
            raise Refusal.of(
                "validation",
                step,
                f"step {step!r}, field 'loop.spec.fanout': partition_by needs 'partitions'",
            )
        size = _number(how.shard_size, names, "shard_size", _ROWS_MAX, step)
        return _checked(draft, by_size(source.total, size), step), source
    partitions = _number(how.partitions, names, "partitions", draft.limits.shards_max, step)
    if how.partition_by:
        _check_size(source, step)
        with evaluation.bounded(draft, step=step, field="loop.spec.fanout.partition_by"):
            return _by_hash(draft, source, how.partition_by, partitions)
    # A shard without items has nothing to do, so there are never more shards than items.
    return Cut(items=source.total, units=min(partitions, source.total)), source


def by_size(items: int, size: int) -> Cut:
    """Cut into contiguous units of `size` items, the last one as it comes."""
    return Cut(items=items, units=-(-items // size), size=size)


def bounds(draft: Draft, of: Cut, unit: int) -> tuple[int, int]:
    """Return where a unit's items begin and end; raises `PayloadNeeded` for a layout."""
    offsets = None if of.layout_ref is None else draft.value_of(of.layout_ref)["offsets"]
    return of.bounds(unit, offsets)


def _number(value: Any, names: Scope, key: str, most: int, step: str) -> int:
    field = f"loop.spec.fanout.{key}"
    rendered = evaluation.render(value, names, step=step, field=field)
    return evaluation.number(rendered, step=step, field=field, least=1, most=most)


def _checked(draft: Draft, found: Cut, step: str) -> Cut:
    if found.units > draft.limits.shards_max:
        raise Refusal.of(
            "limit",
            step,
            f"step {step!r}, field 'loop.spec.fanout': {found.units} shards, "
            f"{draft.limits.shards_max} is the limit: raise shard_size",
        )
    return found


def _check_size(source: Source, step: str) -> None:
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


def _by_hash(
    draft: Draft, source: Source, fields: tuple[str, ...], partitions: int
) -> tuple[Cut, Source]:
    """Group items by the hash of their fields; partitions that nothing falls into are left out."""
    items = sources.items_of(draft, source)
    places: dict[int, list[int]] = {}
    for place, item in enumerate(items):
        places.setdefault(_partition(item, fields, partitions), []).append(place)
    order: list[int] = []
    offsets = [0]
    for partition in sorted(places):
        order += places[partition]
        offsets.append(len(order))
    layout = draft.keep_bytes(codec.encode(Layout(offsets=offsets, order=order)))
    found = Cut(items=len(items), units=len(places), layout_ref=layout)
    grouped = [items[place] for place in order]
    return found, Source(form=Form.LIST, total=len(items), items=grouped, notes=source.notes)


def _partition(item: Any, fields: tuple[str, ...], partitions: int) -> int:
    """Hash what a row's fields hold: the same values fall into the same partition for ever."""
    data = codec.canonical([_field(item, field) for field in fields])
    return int.from_bytes(codec.digest_bytes(data)[:8], "big") % partitions


def _field(item: Any, path: str) -> Any:
    for key in path.split("."):
        item = item.get(key) if isinstance(item, Mapping) else None
    return item
