"""Persist before emit: a result is stored, or small enough to travel, before it is reported."""

from typing import Any

from noetl_contracts import codec
from noetl_contracts.payloads import (
    EVENT_INLINE_BYTES_MAX,
    JSON_MEDIA_TYPE,
    RESULT_INLINE_BYTES_MAX,
    ResultEnvelope,
)
from noetl_playbook import carried, kept
from noetl_playbook.model import Output
from noetl_playbook.results import LoopResult, PipelineResult
from noetl_worker.domain.masking import Mask
from noetl_worker.domain.result import fields_beside, with_selection
from noetl_worker.stores import TenantPayloads


class Keeper:
    """Turns results into envelopes."""

    def __init__(self, *, payloads: TenantPayloads, mask: Mask) -> None:
        self._payloads = payloads
        self._mask = mask

    async def keep(
        self, result: PipelineResult, *, status: str, output: Output | None = None
    ) -> ResultEnvelope:
        """Keep a pipeline's result as the step's `output` wants; raises `SelectionTooLarge`."""
        result = with_selection(result, output)
        limit = RESULT_INLINE_BYTES_MAX
        if output is not None and output.inline_max_bytes is not None:
            limit = min(limit, output.inline_max_bytes)
        # Not canonical: the order of the tasks is part of the result.
        data = self._mask.data(codec.encode(result))
        if len(data) <= limit:
            kept = codec.decode_as(data, PipelineResult)
            return ResultEnvelope(status=status, context=carried.inline(kept))
        return ResultEnvelope(
            status=status,
            reference=await self._payloads.store(
                data, media_type=JSON_MEDIA_TYPE, row_count=_row_count(result)
            ),
            context=carried.referenced(result, fields_beside(result)),
        )

    async def keep_patch(self, patch: dict[str, Any]) -> dict[str, Any]:
        """Store what is large among writes to `ctx`, and return what stands for it."""
        if not patch:
            return patch
        values = dict(patch)
        for name in kept.too_large(_sized(patch), inline_max=EVENT_INLINE_BYTES_MAX):
            data = self._mask.data(codec.canonical(values[name]))
            count = len(values[name]) if isinstance(values[name], list) else None
            reference = await self._payloads.store(
                data, media_type=JSON_MEDIA_TYPE, row_count=count
            )
            values[name] = kept.marker(reference, values[name])
        return values

    async def keep_list(self, results: list[Any]) -> ResultEnvelope:
        """Keep the results of a frame's rows."""
        kept = LoopResult(results=results)
        data = self._mask.data(codec.canonical(kept))
        if len(data) <= RESULT_INLINE_BYTES_MAX:
            return ResultEnvelope(status="ok", context=carried.inline(kept))
        reference = await self._payloads.store(
            data, media_type=JSON_MEDIA_TYPE, row_count=len(results)
        )
        return ResultEnvelope(
            status="ok", reference=reference, context=carried.referenced(kept, {})
        )


def _sized(patch: dict[str, Any]) -> dict[str, int]:
    return {name: len(codec.encode(value)) for name, value in patch.items()}


def _row_count(result: PipelineResult) -> int | None:
    """Count the rows of a tabular result."""
    front = result.tasks.get(result.last or "")
    raw = front.raw if front is not None else None
    if isinstance(raw, dict) and isinstance(raw.get("rows"), list) and "columns" in raw:
        return len(raw["rows"])
    return None
