"""Renders slow templates in a child process; the computation is then repeated with the values."""

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from noetl_chassis import child_process
from noetl_chassis.child_process import ChildEnd, Send
from noetl_contracts.errors import Retryable
from noetl_playbook.templates import output_forms
from noetl_playbook.templates.expressions import TemplateError, compile_condition, compile_value
from noetl_playbook.templates.lookup import Lookup
from noetl_playbook.templates.render_limits import PLANNER
from noetl_playbook.templates.render_record import (
    RenderOutcome,
    RenderRecord,
    SlowRenderError,
)
from noetl_playbook.templates.scope import ScopeParts, TemplateScope
from noetl_playbook.templates.undefined import UndefinedUsedError

# Beside each other: more would take the processors from those that decide.
CHILDREN_MAX = 2
# Each render ends by its own limit of processor time; this is for a machine that gives none.
WAIT_S = 300.0
# How often a computation may ask for a child: each gives at least one render more.
CHILDREN_OF_ONE_MAX = 100

T = TypeVar("T")


class ChildFailed(Retryable):
    """A child process ended without a render, by nothing that a template does."""


class RenderProcesses:
    """Makes computations whose renders take long in children, a few at a time."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(CHILDREN_MAX)

    async def render_computation(self, compute: Callable[[RenderRecord], T]) -> T:
        """Return what `compute` gives; it is called until no render of it is slow."""
        renders = begin_renders()
        for _ in range(CHILDREN_OF_ONE_MAX):
            renders.start_recording()
            try:
                return compute(renders)
            except SlowRenderError:
                await self.render_in_child(renders, lambda: compute(renders))
        raise ChildFailed("the templates of one request ask for too many child processes")

    async def render_inputs(self, inputs: Any, names: Mapping[str, Any]) -> Any:
        """Render what a request from outside becomes; what it does not say is false.

        Raises `TemplateError`.
        """

        def compute_inputs(renders: RenderRecord) -> Any:
            parts = ScopeParts(limits=PLANNER, renders=renders, is_lenient=True)
            return compile_value(inputs).render(TemplateScope(names, parts))

        return await self.render_computation(compute_inputs)

    async def evaluate_condition(self, condition: str, names: Mapping[str, Any]) -> bool:
        """Judge a condition over what a request from outside says; raises `TemplateError`.

        What is not there and is used for its truth is an error.
        """

        def compute_condition(renders: RenderRecord) -> bool:
            parts = ScopeParts(limits=PLANNER, renders=renders)
            return compile_condition(condition).is_true(TemplateScope(names, parts))

        return await self.render_computation(compute_condition)

    async def render_in_child(self, renders: RenderRecord, compute: Callable[[], object]) -> None:
        """Make a computation in a child, and keep what its templates gave; raises `ChildFailed`."""

        def run_in_child(send: Send) -> None:
            renders.start_recording(_RecordSender(send))
            # Here again it ends like this, where it is made with what was rendered.
            with suppress(Exception):
                compute()

        async with self._places:
            end = await child_process.run_child(run_in_child, wait_s=WAIT_S)
        _keep_renders(renders, end)


def begin_renders() -> RenderRecord:
    """Count the renders of a computation that has not begun."""
    return RenderRecord(time.thread_time)


class _RenderFault(Struct, frozen=True, kw_only=True):
    """A template's error on its way."""

    message: str
    expression: str
    hint: str | None
    path: tuple[str | int, ...]
    kind: str
    is_undefined: bool

    def as_error(self) -> TemplateError:
        error = TemplateError(
            self.message,
            expression=self.expression,
            hint=self.hint,
            path=self.path,
            kind=self.kind,
        )
        if self.is_undefined:
            error.__cause__ = UndefinedUsedError(self.message)
        return error


class _RenderRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A render that begins, or what it gave."""

    place: int
    expression: str
    seconds: float
    is_over: bool = False
    value: Any = None
    fault: _RenderFault | None = None


class _RecordSender:
    """Sends to the parent what is rendered in its child."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def observe_render(
        self, place: int, expression: str, seconds: float, render: Callable[[], Any]
    ) -> Any:
        """Send which render begins, so that it is known what has killed the child, and its end.

        Errors of others than the template are met again where they can be dealt with.
        """
        child_process.limit_seconds(seconds)
        begin_record = _RenderRecord(place=place, expression=expression, seconds=seconds)
        self._send(msgspec.msgpack.encode(begin_record))
        over = msgspec.structs.replace(begin_record, is_over=True)
        try:
            value = render()
        except TemplateError as error:
            self._send_fault(over, error)
            raise
        plain_value = output_forms.to_plain(value) if isinstance(value, Lookup) else value
        try:
            data = msgspec.msgpack.encode(msgspec.structs.replace(over, value=plain_value))
        except (TypeError, ValueError, OverflowError, RecursionError) as failure:
            why = f"the value cannot be written as JSON: {failure}"
            self._send_fault(over, TemplateError(why, expression=expression))
        else:
            self._send(data)
        return value

    def _send_fault(self, over: _RenderRecord, error: TemplateError) -> None:
        self._send(msgspec.msgpack.encode(msgspec.structs.replace(over, fault=_make_fault(error))))


def _make_fault(error: TemplateError) -> _RenderFault:
    return _RenderFault(
        message=error.message,
        expression=error.expression,
        hint=error.hint,
        path=error.path,
        kind=error.kind,
        is_undefined=isinstance(error.__cause__, UndefinedUsedError),
    )


def _keep_renders(renders: RenderRecord, end: ChildEnd) -> None:
    """Keep what was rendered; a render that has killed its child gives an error."""
    last: _RenderRecord | None = None
    for data in end.records:
        last = msgspec.msgpack.decode(data, type=_RenderRecord)
        if last.is_over:
            fault = last.fault
            renders.rendered[last.place] = (
                RenderOutcome(value=last.value)
                if fault is None
                else RenderOutcome(error=fault.as_error())
            )
    if end.is_late:
        raise ChildFailed(f"a child process got no processor within {WAIT_S:g} s")
    if last is None:
        raise ChildFailed("a child process gave nothing of what it was to render")
    if not last.is_over and end.killed_by is not None:
        error = _build_killed_error(last.expression, last.seconds, end.killed_by)
        renders.rendered[last.place] = RenderOutcome(error=error)


def _build_killed_error(expression: str, seconds: float, number: int) -> TemplateError:
    if number == signal.SIGXCPU:
        why = f"the template takes longer than {seconds:g} s"
    else:
        why = f"the template ends its process with {signal.Signals(number).name}"
    return TemplateError(why, expression=expression, kind="limit")
