"""Where a result is kept, and what is said about it beside its reference."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.payloads import (
    EVENT_INLINE_BYTES_MAX,
    INLINE_BYTES_MAX,
    RESULT_INLINE_BYTES_MAX,
)
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Output
from noetl_playbook.views.results import PipelineResult

STORE_FALLBACK = "store_fallback"
FORMAT_FALLBACK = "format_fallback"
TTL_UNUSED = "ttl_unused"
ACCUMULATE_TRUNCATED = "accumulate_truncated"
# No attempt had anything where `merge_path` leads.
COLLECTED_NOTHING = "collected_nothing"

# The store kinds that mean the same as what the deployment's payload address says.
_MEANINGS = {
    "memory": frozenset({"memory"}),
    "disk": frozenset({"disk", "pvc"}),
    "s3": frozenset({"s3", "minio", "object"}),
    "gcs": frozenset({"gcs", "object"}),
    "azure": frozenset({"azure", "object"}),
}
# Fields that a playbook asks for take at most half of their event.
_TRAVEL_BYTES_MAX = EVENT_INLINE_BYTES_MAX // 2
_COLUMNS_BYTES_MAX = 4 * 1024
_DEFAULT = Output()


class ResultStorage(Struct, frozen=True, kw_only=True):
    """How one result is to be kept; `backend` is the deployment's own store.

    Up to `inline_bytes_max` the playbook sees it inline; only up to `travel_bytes_max` does it
    travel in its event, and what lies between is stored without the playbook noticing. A tabular
    result that the playbook sees as stored is a table when `is_tabular_first`. A named object holds
    what `is_permanent`, which outlives the history.
    """

    inline_bytes_max: int
    travel_bytes_max: int
    preview_bytes_max: int
    backend: str
    compression: str | None
    format: str | None
    is_tabular_first: bool
    is_permanent: bool
    about: dict[str, Any]
    notes: tuple[str, ...]


def decide_storage(output: Output | None, *, backend: str) -> ResultStorage:
    """Decide from an `output` block; a wish that the deployment cannot grant is noted."""
    output_block = output or _DEFAULT
    store = output_block.store
    is_auto = store.kind == "auto"
    # The deployment has one store: other kinds, and places of their own, fall back to it.
    is_granted = is_auto or store.kind in _MEANINGS.get(backend, frozenset())
    has_place = any((store.bucket, store.prefix, store.credential))
    about: dict[str, Any] = {}
    if output_block.scope != _DEFAULT.scope:
        about["scope"] = output_block.scope
    ttl_s = coercion.coerce_duration_s(store.ttl) if store.ttl is not None else None
    is_permanent = output_block.scope == "permanent"
    if output_block.scope == "step" and ttl_s is None:
        # Steps that follow read it; nobody does once the execution has ended.
        ttl_s = 0
    if ttl_s is not None and not is_permanent:
        about["ttl_s"] = ttl_s
    notes = () if is_granted and not has_place else (STORE_FALLBACK,)
    if is_permanent and ttl_s is not None:
        notes = (*notes, TTL_UNUSED)
    inline_bytes_max, travel_bytes_max = _compute_size_limits(output_block, is_auto=is_auto)
    return ResultStorage(
        inline_bytes_max=inline_bytes_max,
        travel_bytes_max=travel_bytes_max,
        preview_bytes_max=output_block.preview_max_bytes,
        backend=backend,
        compression=None if store.compression in {None, "none"} else store.compression,
        format=output_block.format if output_block.format in {"arrow", "parquet"} else None,
        is_tabular_first=output_block.format == "auto",
        is_permanent=is_permanent,
        about=about,
        notes=notes,
    )


def _compute_size_limits(output: Output, *, is_auto: bool) -> tuple[int, int]:
    """Return up to how many bytes a result is inline, and up to how many it travels."""
    if not is_auto or output.inline_max_bytes == 0:
        # Nothing is so small that "always store" would not store it.
        return -1, -1
    if output.inline_max_bytes is not None:
        return output.inline_max_bytes, min(output.inline_max_bytes, _TRAVEL_BYTES_MAX)
    if wants_handle(output):
        return RESULT_INLINE_BYTES_MAX, RESULT_INLINE_BYTES_MAX
    return INLINE_BYTES_MAX, RESULT_INLINE_BYTES_MAX


def wants_handle(output: Output) -> bool:
    """Tell whether an `output` speaks of the reference or of what it leads to."""
    store = output.store
    return bool(
        output.select
        or output.as_ is not None
        or output.scope != _DEFAULT.scope
        or output.format != "auto"
        or store.compression not in {None, "none"}
        or any((store.bucket, store.prefix, store.credential, store.ttl))
    )


def build_preview(result: PipelineResult, bytes_max: int) -> str:
    """Return the beginning of what the last successful task returned, as JSON.

    It is written piece by piece: the rest of a large result is not encoded for it.
    """
    front = result.tasks.get(result.last or "")
    if front is None or bytes_max <= 0:
        return ""
    texts: list[str] = []
    room = bytes_max
    for text in _iterate_json_pieces(front.raw, bytes_max):
        texts.append(text)
        room -= len(text)
        if room <= 0:
            break
    # What is cut in the middle of a character ends before it.
    return "".join(texts)[:bytes_max].encode()[:bytes_max].decode(errors="ignore")


def _iterate_json_pieces(value: Any, characters_max: int) -> Iterator[str]:
    """Write a value as JSON, piece by piece; of a long text only its beginning."""
    if isinstance(value, dict):
        yield "{"
        for index, (key, item) in enumerate(value.items()):
            yield f"{',' if index else ''}{codec.encode_text(key)}:"
            yield from _iterate_json_pieces(item, characters_max)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for index, item in enumerate(value):
            yield "," if index else ""
            yield from _iterate_json_pieces(item, characters_max)
        yield "]"
    else:
        is_long = isinstance(value, str) and len(value) > characters_max
        yield (
            codec.encode_text(value[:characters_max])[:-1] if is_long else codec.encode_text(value)
        )


def find_list_length(result: PipelineResult) -> int | None:
    """Return how many values a result has that is a bare list: a loop over it reads no more."""
    front = result.tasks.get(result.last or "")
    return len(front.raw) if front is not None and isinstance(front.raw, list) else None


def find_columns(result: PipelineResult) -> list[Any] | None:
    """Return the columns of a tabular result, if they are few enough to stay readable."""
    front = result.tasks.get(result.last or "")
    raw = front.raw if front is not None else None
    if not isinstance(raw, dict) or not isinstance(raw.get("rows"), list):
        return None
    columns = raw.get("columns")
    if not isinstance(columns, list) or len(codec.encode_json(columns)) > _COLUMNS_BYTES_MAX:
        return None
    return columns
