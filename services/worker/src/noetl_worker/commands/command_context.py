"""Context of the units of one command: names and scopes of templates, and earlier results."""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, TypeVar

from noetl_chassis import identity
from noetl_chassis.clock import Clock
from noetl_contracts.commands.command_work import (
    Chunk,
    ChunkWork,
    Command,
    FrameWork,
    ItemWork,
    ReduceWork,
    SlotWork,
    StepResult,
)
from noetl_contracts.commands.state_values import Increment
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import FrameId
from noetl_playbook.templates import json_render, render_limits, scope
from noetl_playbook.templates.expressions import CompiledTemplate, TemplateError, describe_location
from noetl_playbook.templates.lookup import MISSING
from noetl_playbook.templates.scope import ScopeParts, TemplateScope, TimeSource
from noetl_playbook.views import ctx_references, output_view, result_envelope
from noetl_playbook.views.keychain import KeyNeeded
from noetl_playbook.views.loop_parts import LoopPartList
from noetl_playbook.views.output_view import OutputView
from noetl_playbook.views.payload_handle import PayloadNeeded
from noetl_playbook.views.result_view import ViewNamespace
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.frames import Frame
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain.keychain import Keychain, KeychainOwner, Keyring
from noetl_worker.payloads.tenant_payloads import TenantPayloads

T = TypeVar("T")

_NOTHING: Mapping[str, Any] = {}
# Each load makes one more name readable, so a render ends after as many as it names.
_LOADS_MAX = 1_000


class CommandContext:
    """What all units of one command share: workload, `ctx` at dispatch, earlier results."""

    def __init__(
        self,
        command: Command,
        *,
        workload: dict[str, Any],
        ctx: dict[str, Any],
        iterator: str | None,
        clock: Clock,
        keyring: Keyring,
    ) -> None:
        self.command = command
        self.workload = workload
        self.iterator = iterator
        self._value_by_digest: dict[str, Any] = {}
        self._is_repeated = _is_repeated(command)
        self.find = result_envelope.make_payload_finder(self._value_by_digest)
        self.ctx = ctx_references.view_ctx(ctx, self.find)
        self.steps = {
            name: self._build_step_view(name, step_result)
            for name, step_result in command.slice.steps.items()
        }
        envelopes = {name: self._build_step_envelope(name) for name in self.steps}
        execution_id = command.execution_id
        self.keychain = _build_keychain(command, keyring)
        self._fixed: dict[str, Any] = {
            "workload": workload,
            "steps": ViewNamespace(envelopes),
            "execution_id": execution_id,
            "catalog_id": command.catalog_id,
            "job": {"uuid": execution_id, "execution_id": execution_id},
            "env": keyring.template_env,
            "iter": {},
            scope.last_name_key("parent_execution_id"): command.parent_execution_id,
            scope.last_name_key("payload"): workload,
            **TimeSource(now=clock.now, new_uuid=_build_uuid).build_names(),
        }
        if command.slice.increment is not None:
            self._fixed[scope.last_name_key("increment")] = show_increment(command.slice.increment)
        came_from = command.slice.came_from
        if came_from in envelopes:
            self._fixed["output"] = envelopes[came_from]
        # Without the keychain's own: what knows each other is left to the collector.
        self._is_lenient = command.defaults.get("undefined") != "strict"
        self.keychain.bind_names(self._fixed, workload, is_lenient=self._is_lenient)
        self._fixed = {**self._fixed, **self.keychain.build_template_names()}

    def build_scope(
        self,
        fixed: Mapping[str, Any],
        *,
        ctx: Mapping[str, Any],
        variables: Mapping[str, Any] = _NOTHING,
        tasks: Mapping[str, Any] = _NOTHING,
        iterators: Mapping[str, Any] = _NOTHING,
        steps: Mapping[str, Any] | None = None,
        steady: dict[Any, Any] | None = None,
    ) -> TemplateScope:
        """Build the names of one place; what is handed in may change in place."""
        names = TemplateScope(
            self._fixed,
            ScopeParts(
                variables=variables,
                tasks=tasks,
                iterators=iterators,
                steps=self.steps if steps is None else steps,
                ctx=ctx,
                workload=self.workload,
                limits=render_limits.WORKER,
                is_lenient=self._is_lenient,
            ),
            steady=steady,
        )
        names["ctx"] = ctx
        names.update(fixed)
        return names

    def with_ctx_patch(self, patch: Mapping[str, Any]) -> "CommandContext":
        """Return the same with other values laid over `ctx`."""
        if not patch:
            return self
        context = copy(self)
        context.ctx = ctx_references.overlay_ctx(self.ctx, patch)
        return context

    def for_item(self, command: Command) -> "CommandContext":
        """Return the same for one item of a batch, which sees no writes of the others."""
        context = copy(self)
        context.command = command
        context.ctx = ctx_references.overlay_ctx(self.ctx, {})
        return context

    def build_chunk_names(self, chunk: Chunk) -> dict[str, Any]:
        """Name a chunk of another step's stream, its rows unloaded."""
        return output_view.build_chunk_names(
            chunk, result_envelope.make_payload_finder(self._value_by_digest)
        )

    def build_unit_scope(
        self, *, unit: str, row_index: int | None = None, frame_id: FrameId | None = None
    ) -> UnitScope:
        """Say where a unit of this command stands."""
        command = self.command
        return UnitScope(
            execution_id=command.execution_id,
            tenant_id=command.tenant_id,
            organization_id=command.organization_id,
            step=command.step,
            unit=unit,
            row_index=row_index,
            frame_id=frame_id,
            activation=command.activation,
            file_sources=tuple(command.file_sources),
            file_entries=command.file_entries,
            is_repeated=self._is_repeated,
            keychain=self.keychain,
            path=command.path,
        )

    async def render_with_loads(self, render: Callable[[], T], payloads: TenantPayloads) -> T:
        """Render, getting each payload and secret that turns out to be needed."""
        loaded_bytes = 0
        for _ in range(_LOADS_MAX):
            try:
                return render()
            except PayloadNeeded as request:
                reference = request.stored.reference
                loaded_bytes += reference.payload_bytes
                if loaded_bytes > render_limits.WORKER.payload_bytes:
                    text = render_limits.payload_too_large(loaded_bytes, render_limits.WORKER)
                    raise ToolFailure(build_error("payload_too_large", text)) from request
                self._value_by_digest[reference.sha256] = await payloads.load_value(reference)
            except KeyNeeded as request:
                await self.keychain.supply_secret(request)
        raise ToolFailure(build_error("limit", f"a template names more than {_LOADS_MAX} payloads"))

    def _build_step_view(self, name: str, result: StepResult) -> Any:
        return result_envelope.view_result(
            result.result,
            execution_id=self.command.execution_id,
            step=name,
            run="latest",
            find=self.find,
            error=result.error,
        )

    def _build_step_envelope(self, name: str) -> OutputView:
        view = self.steps[name]
        result = self.command.slice.steps[name]
        return OutputView(MISSING if result.result is None else view, error=result.error)


def show_increment(increment: Increment) -> dict[str, Any]:
    """Show an increment to templates."""
    return {
        "since": increment.since,
        "until": increment.until,
        "state": increment.value,
        "is_backfill": increment.is_backfill,
    }


def _is_repeated(command: Command) -> bool:
    """Tell whether an earlier attempt may have done some of a command's work.

    A chunk may come before the task that sends it has said that it changed files.
    """
    match command.work:
        case FrameWork(attempt=attempt) | ReduceWork(attempt=attempt):
            is_later = attempt > 1
        case SlotWork(open_frame=open_frame):
            is_later = open_frame is not None
        case ChunkWork():
            is_later = True
        case _:
            is_later = False
    return is_later or command.attempt > 1 or command.resume is not None


def _build_keychain(command: Command, keyring: Keyring) -> Keychain:
    about = KeychainOwner(
        site=UnitScope(
            execution_id=command.execution_id,
            tenant_id=command.tenant_id,
            organization_id=command.organization_id,
            step=command.step,
            unit="keychain",
            path=command.path,
        ),
        parent_execution_id=command.parent_execution_id,
        catalog_id=command.catalog_id,
        is_first=command.activation == 1,
    )
    return Keychain(command.keychain, keyring=keyring, about=about)


def _build_uuid() -> str:
    token = identity.mint_token()
    return f"{token[:8]}-{token[8:12]}-{token[12:16]}-{token[16:20]}-{token[20:]}"


def build_template_error(
    error: TemplateError, *, step: str, task: str | None = None, field: str = ""
) -> ErrorObject:
    """Say where a template failed."""
    text = describe_location(error, step=step, task=task, field=field)
    return build_error(error.kind, text, step=step, task=task)


async def render_field(
    compiled: CompiledTemplate,
    names: TemplateScope,
    field: str,
    *,
    context: CommandContext,
    payloads: TenantPayloads,
) -> Any:
    """Render one field outside a pipeline; raises `ToolFailure`."""
    try:
        value = await context.render_with_loads(lambda: compiled.render(names), payloads)
        json_render.check_json_value(value, compiled.source)
    except TemplateError as error:
        step = context.command.step
        raise ToolFailure(build_template_error(error, step=step, field=field)) from error
    return context.keychain.open_sealed(value)


def build_item_names(
    context: CommandContext, *, item: Any, work: ItemWork
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fixed names and the iterator names of one item of a loop."""
    iterator = context.iterator or "item"
    fixed = scope.build_item_names(
        iterator=iterator,
        item=item,
        index=work.index,
        total=work.total,
        loop_id=context.command.run_id,
        ended=(work.done, work.failed),
    )
    return fixed, {iterator: item}


def build_part_names(
    context: CommandContext, work: ReduceWork, views: LoopPartList
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fixed names and the iterator names of a reduce body."""
    iterator = context.iterator or "parts"
    frame = {
        "id": work.frame_id,
        "index": work.level,
        "base_index": work.start,
        "rows": views,
        "row_count": len(views),
        "worker_slot_id": work.unit,
        "attempt": work.attempt,
        "policy": work.frame,
    }
    fixed = {"iter": {iterator: views}, "fanin": work.fanin, "frame": frame}
    return fixed, {iterator: views}


def build_frame_names(
    context: CommandContext, frame: Frame, *, row_index: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fixed names and the iterator names of a row, or of a whole frame."""
    iterator = context.iterator or "item"
    item: Any = frame.rows if row_index is None else frame.rows[row_index]
    index = frame.get_row_index(row_index or 0)
    scratch = {
        f"{iterator}_rows": frame.rows,
        "_worker_slot_id": frame.slot,
        "_frame_index": frame.frame_index,
        "_frame_row_index": row_index,
    }
    if frame.sliced is not None and frame.sliced.shard_key is not None:
        scratch["_shard_id"] = frame.frame_id
        scratch["_shard_index"] = frame.slot
        scratch["_shard_attempt"] = frame.attempt
    fixed = scope.build_item_names(
        iterator=iterator,
        item=item,
        index=index,
        total=None if frame.sliced is None else frame.sliced.total,
        loop_id=context.command.run_id,
        key=_build_row_key(context, frame, index, row_index),
        ended=None if frame.sliced is None else (frame.sliced.done, frame.sliced.failed),
        scratch=scratch,
    )
    fixed["frame"] = {
        "id": frame.frame_id,
        "index": frame.frame_index,
        "base_index": frame.base_index,
        "rows": frame.rows,
        "row_count": len(frame.rows),
        "worker_slot_id": frame.slot,
        "attempt": frame.attempt,
        "policy": frame.policy_names,
    }
    return fixed, {iterator: item, f"{iterator}_rows": frame.rows}


def _build_row_key(context: CommandContext, frame: Frame, index: int, row_index: int | None) -> str:
    """Name a row's effects: the same in every attempt, another one for every row."""
    if frame.sliced is None:
        return f"{frame.root_frame_id}:{index}"
    shard_key = frame.sliced.shard_key
    if shard_key is None:
        return f"{context.command.run_id}:{index}"
    is_whole = row_index is None or len(frame.rows) == 1 or frame.policy.process == "frame"
    return shard_key if is_whole else f"{shard_key}:{row_index}"


def build_claim_scope(
    context: CommandContext,
    *,
    frame_id: FrameId,
    frame_index: int,
    slot: int,
    policy: dict[str, Any],
) -> TemplateScope:
    """Build the names of a cursor's claim."""
    fixed = {
        "__frame_id": frame_id,
        "__frame_index": frame_index,
        "__worker_slot_id": slot,
        "__frame_policy": policy,
        "__frame_max_rows": policy.get("max_rows", 1),
    }
    return context.build_scope(fixed, ctx=context.ctx)
