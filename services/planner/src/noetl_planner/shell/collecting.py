"""Gathers the results of a finished loop's items, in item order, into one result."""

from typing import Any

from noetl_contracts import codec
from noetl_contracts.envelope import Envelope
from noetl_contracts.events.step import CallDone, CallError
from noetl_contracts.facts import FactBatch, ItemsCollected
from noetl_contracts.payloads import JSON_MEDIA_TYPE, RESULT_INLINE_BYTES_MAX, ResultEnvelope
from noetl_planner.domain.items import stats_of
from noetl_playbook import carried, forms
from noetl_playbook.results import LoopResult
from noetl_replay.state import ExecutionState
from noetl_storage import encoding
from noetl_storage.ports import LedgerReader, Payloads


class Collector:
    """Reads item results from the ledger; bulk results are read from the payload store."""

    def __init__(self, *, ledger: LedgerReader, payloads: Payloads) -> None:
        self._ledger = ledger
        self._payloads = payloads

    async def collect(self, state: ExecutionState, run_id: str) -> FactBatch | None:
        """Return the fact that ends the loop; None when its epoch is over."""
        run = next((one for one in state.runs.values() if one.run_id == run_id), None)
        if run is None or run.loop is None:
            return None
        found = await self._ledger.list_item_results(state.execution_id, run_id)
        kept = LoopResult(
            results=[await self._value(envelope) for envelope in found],
            stats=codec.builtins(stats_of(run.loop)),
        )
        return FactBatch(
            key=f"collected/{run_id}",
            execution_id=state.execution_id,
            tenant_id=state.tenant_id,
            organization_id=state.organization_id,
            producer="planner",
            facts=[ItemsCollected(run_id=run_id, result=await self._result(state, kept))],
        )

    async def _value(self, envelope: Envelope) -> Any:
        event = envelope.event
        if not isinstance(event, CallDone | CallError):
            return None
        error = codec.builtins(event.error) if isinstance(event, CallError) else None
        loaded = {}
        if event.result is not None and event.result.reference is not None:
            reference = event.result.reference
            loaded[reference.sha256] = encoding.decode(await self._payloads.read(reference))
        shown = carried.view(
            event.result,
            execution_id=envelope.execution_id,
            step=event.step,
            run=event.run_id,
            find=carried.found_in(loaded),
        )
        plain = forms.plain(shown)
        if error is None:
            return plain
        failure = {"status": "error", "error": error}
        return {**plain, **failure} if isinstance(plain, dict) else failure

    async def _result(self, state: ExecutionState, kept: LoopResult) -> ResultEnvelope:
        data = codec.canonical(kept)
        if len(data) <= RESULT_INLINE_BYTES_MAX:
            return ResultEnvelope(status="ok", context=carried.inline(kept))
        reference = await self._payloads.put(
            data,
            tenant_id=state.tenant_id,
            organization_id=state.organization_id,
            media_type=JSON_MEDIA_TYPE,
            row_count=len(kept.results),
        )
        return ResultEnvelope(
            status="ok",
            reference=reference,
            context=carried.referenced(kept, {"stats": kept.stats}),
        )
