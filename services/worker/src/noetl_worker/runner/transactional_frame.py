"""Runs a frame so that its Postgres effects happen once, however often it is dispatched."""

from typing import Any

import structlog

from noetl_chassis import loop
from noetl_chassis.failpoints import Failpoint, pass_failpoint
from noetl_chassis.observability import names
from noetl_chassis.task_group import open_task_group
from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.commands.waits import Resume
from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import ResultEnvelope
from noetl_worker.commands.command_context import CommandContext, build_frame_names, render_field
from noetl_worker.commands.command_progress import start_frame_span
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.domain.frames import Frame, FrameResult
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline
from noetl_worker.runner.frame import run_frame
from noetl_worker.tools import load_postgres_modules
from noetl_worker.tools.postgres.effects import EffectsLost, FrameEffects, open_effects

_TRIES_MAX = 8
_RETRY_BASE_S = 0.2
_RETRY_MAX_S = 5.0

log = structlog.get_logger(__name__)


async def run_frame_once(
    frame: Frame,
    *,
    block: CompiledPipeline,
    context: CommandContext,
    services: CommandServices,
    may_leave_rows: bool,
    resume: Resume | None = None,
) -> FrameResult:
    """Run a frame, in one transaction if its policy says so.

    Raises `ToolFailure`, and `FrameParked` when a row of a frame that may wait does.
    """
    once = _TransactionalFrame(
        frame=frame,
        block=block,
        context=context,
        services=services,
        may_leave_rows=may_leave_rows,
    )
    with start_frame_span(frame):
        async with services.journal.keep_lines():
            return await once.run_as_policy(resume)


class _TransactionalFrame:
    """One frame and all that running it needs."""

    def __init__(
        self,
        *,
        frame: Frame,
        block: CompiledPipeline,
        context: CommandContext,
        services: CommandServices,
        may_leave_rows: bool,
    ) -> None:
        self._frame = frame
        self._block = block
        self._context = context
        self._services = services
        self._may_leave_rows = may_leave_rows

    async def run_as_policy(self, resume: Resume | None) -> FrameResult:
        """Run the frame as its policy says."""
        has_effects = any(task.kind == "postgres" for task in self._block.tasks)
        if not self._frame.policy.transaction or not has_effects:
            return await self.run_body(resume=resume)
        return await self.run_in_transaction()

    async def run_body(
        self, effects: FrameEffects | None = None, *, resume: Resume | None = None
    ) -> FrameResult:
        """Run the frame's body."""
        return await run_frame(
            self._frame,
            block=self._block,
            context=self._context,
            services=self._services,
            may_leave_rows=self._may_leave_rows,
            transaction=effects,
            resume=resume,
        )

    async def run_in_transaction(self) -> FrameResult:
        """Run the body and commit its effects; again from the start when they were lost."""
        auth = await self._render_auth()
        tries = 0
        while True:
            try:
                return await self._attempt_transaction(auth)
            except EffectsLost as lost:
                error = lost.error
            tries += 1
            if tries == _TRIES_MAX or not error.retryable:
                raise ToolFailure(error)
            log.warning(
                "effects lost, frame runs again",
                reason=error.message,
                **{names.FIELD_FRAME: self._frame.frame_id},
            )
            await loop.sleep_backoff(tries, base_s=_RETRY_BASE_S, max_s=_RETRY_MAX_S)

    async def _attempt_transaction(self, auth: Any) -> FrameResult:
        frame = self._frame
        site = self._context.build_unit_scope(unit=frame.root_frame_id, frame_id=frame.frame_id)
        await load_postgres_modules()
        async with open_effects(self._services.tools.postgres, auth=auth, site=site) as effects:
            earlier_effects = await effects.begin_effects()
            if earlier_effects is not None:
                return _recall_result(earlier_effects, frame)
            async with open_task_group() as group:
                keep_alive_task = group.create_task(effects.keep_alive())
                result = await self.run_body(effects)
                await pass_failpoint(Failpoint.WORKER_COMMIT_BEFORE)
                await effects.commit_effects(self._mask_outcome(_encode_outcome(result, frame)))
                await pass_failpoint(Failpoint.WORKER_COMMIT_AFTER)
                keep_alive_task.cancel()
            return result

    def _mask_outcome(self, outcome: dict[str, Any]) -> dict[str, Any]:
        masked: dict[str, Any] = codec.decode_json(
            self._services.mask.mask_bytes(codec.encode_json(outcome))
        )
        return masked

    async def _render_auth(self) -> Any:
        """Render the credential that the frame's postgres tasks share."""
        task = next(
            compiled_task for compiled_task in self._block.tasks if compiled_task.kind == "postgres"
        )
        fixed, iterators = build_frame_names(self._context, self._frame, row_index=None)
        scope = self._context.build_scope(fixed, ctx=self._context.ctx, iterators=iterators)
        return await render_field(
            task.auth,
            scope,
            f"tool.{task.name}.auth",
            context=self._context,
            payloads=self._services.payloads,
        )


def _encode_outcome(result: FrameResult, frame: Frame) -> dict[str, Any]:
    """Write down what a later run of the same frame must report."""
    return {
        "rows_done": result.rows_done,
        "rows_failed": result.rows_failed,
        "error": None if result.error is None else codec.to_builtins(result.error),
        "patch": result.patch,
        "results": result.results,
        "kept": None if result.kept is None else codec.to_builtins(result.kept),
        "rows_cancelled": result.rows_cancelled,
        "started": len(frame.rows) - len(result.remaining),
        "duration_s": result.duration_s,
        "metrics": codec.to_builtins(result.metrics),
    }


def _recall_result(recalled: dict[str, Any], frame: Frame) -> FrameResult:
    """Report the outcome of a frame that took effect before."""
    error, kept_result = recalled["error"], recalled.get("kept")
    return FrameResult(
        rows_done=recalled["rows_done"],
        rows_failed=recalled["rows_failed"],
        error=None if error is None else codec.convert_value(error, ErrorObject),
        patch=recalled["patch"],
        results=recalled["results"],
        remaining=frame.rows[recalled["started"] :],
        duration_s=recalled["duration_s"],
        rows_cancelled=recalled.get("rows_cancelled", 0),
        kept=None if kept_result is None else codec.convert_value(kept_result, ResultEnvelope),
        metrics=codec.convert_value(recalled.get("metrics", {}), MetricsByTask),
    )
