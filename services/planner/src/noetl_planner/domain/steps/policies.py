"""Policies of loops and frames: failed units (language, 7.2), retries, and admission of steps."""

import math
from fractions import Fraction
from typing import Any

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events.loop_events import LoopStats
from noetl_contracts.status import RunStatus
from noetl_planner.domain.decision import evaluation
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal, RunOutcome
from noetl_planner.domain.steps import command_placement, step_end_events
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Failure, Frame, Step
from noetl_playbook.templates.scope import TemplateScope
from noetl_replay.state import LoopState, RunState, StageState

_FIELDS = ("max_failed", "min_success")
_PERCENT = 100
FAILED_FAST = "another unit of the loop failed"
_ATTEMPTS_MAX = 3
_NUMBERS = {
    "max_rows": (1, 1_000_000),
    "max_bytes": (1, 1 << 34),
    "row_concurrency": (1, 10_000),
    "max_attempts": (1, 1_000),
}
_SECONDS_MAX = {"max_seconds": 86_400, "lease_seconds": 86_400, "heartbeat_seconds": 43_200}


def select_failure_policy(step: Step) -> Failure:
    """Return the policy that governs a loop: its own, the step's, or the mode's default."""
    loop = step.loop
    failure = loop.spec.policy.failure if loop is not None else None
    if failure is not None:
        return failure
    if step.spec.policy.failure is not None:
        return step.spec.policy.failure
    return Failure(mode="best_effort" if loop is not None and loop.cursor is not None else "drain")


def check_failure_policy(step: Step) -> None:
    """Refuse bounds that are none before a unit runs under them; raises `Refusal`."""
    if step.loop is None and not any(task.stream for task in step.tool):
        return
    policy = select_failure_policy(step)
    for field in _FIELDS:
        _parse_unit_bound(policy, field, 0, step.step)


def find_loop_failure(step: Step, loop: LoopState, stats: LoopStats) -> ErrorObject | None:
    """Return the loop's error, or None when its outcome is ok."""
    policy = select_failure_policy(step)
    if any(slot.has_failed for slot in loop.slots):
        return _build_loop_failure_error(step, loop, stats)
    if policy.mode == "best_effort":
        return None
    total, success, failed = count_loop_units(loop)
    failed_max = _parse_unit_bound(policy, "max_failed", total, step.step)
    success_min = _parse_unit_bound(policy, "min_success", total, step.step)
    if failed <= failed_max and success >= success_min:
        return None
    return _build_loop_failure_error(step, loop, stats)


def has_exceeded_failures(step: Step, loop: LoopState) -> bool:
    """Tell whether no further unit may start."""
    total, _, failed = count_loop_units(loop)
    bound = find_failed_max(step, total)
    return bound is not None and failed > bound


def find_failed_max(step: Step, total: int) -> int | None:
    """Return how many failures a loop of so many units bears before it stops; None: any number."""
    policy = select_failure_policy(step)
    if policy.mode != "fail_fast":
        return None
    return _parse_unit_bound(policy, "max_failed", total, step.step)


def count_loop_units(loop: LoopState) -> tuple[int, int, int]:
    """Return how many units a loop has, and how many succeeded and failed: shards of a fan-out."""
    if loop.mode == "fanout" and loop.cut is not None:
        return loop.cut.total_units, loop.units_ok, loop.units_failed
    return loop.total, loop.success, loop.failed


def _build_loop_failure_error(step: Step, loop: LoopState, stats: LoopStats) -> ErrorObject:
    first = loop.first_error
    message = f"{stats.failed} of {stats.total} units of loop {step.step!r} failed"
    if first is not None:
        message += f"; the first: {first.message}"
    return ErrorObject(
        kind="loop_items_failed",
        code="LOOP_ITEMS_FAILED",
        step=step.step,
        message=message,
        details={
            "first_error": codec.to_builtins(first),
            "stats": codec.to_builtins(stats),
        },
    )


def _parse_unit_bound(policy: Failure, field: str, total: int, step: str) -> int:
    """Read how many units a bound means; a percentage is rounded down."""
    bound = getattr(policy, field)
    if bound is None or isinstance(bound, int):
        return max(0, bound or 0)
    text = bound.strip()
    is_share = text.endswith("%")
    number = coercion.coerce_number(text.removesuffix("%"))
    if number is None or not math.isfinite(number) or not (is_share or isinstance(number, int)):
        raise Refusal.for_step(
            "validation",
            step,
            f"step {step!r}, field 'policy.failure.{field}': {bound!r:.80} is neither a whole "
            "number nor a percentage: write one, as 5 or 5%",
        )
    # As it is written: a binary fraction near it may come to one unit less.
    return max(0, int(Fraction(str(number)) * total // _PERCENT if is_share else number))


def render_frame_policy(
    frame: Frame | None, names: TemplateScope, *, step: str, within: str
) -> dict[str, Any]:
    """Render what is written of a frame policy; raises `Refusal`. `within` names its place."""
    policy: dict[str, Any] = codec.to_builtins(frame) if frame else {}
    for key, (least, most) in _NUMBERS.items():
        if key in policy:
            field = f"{within}.{key}"
            value = evaluation.render_value(policy[key], names, step=step, field=field)
            if key == "max_bytes":
                value = coercion.coerce_size_bytes(value) or value
            policy[key] = evaluation.check_bounded_number(
                value, step=step, field=field, least=least, most=most
            )
    for key, seconds_max in _SECONDS_MAX.items():
        if key in policy:
            field = f"{within}.{key}"
            value = evaluation.render_value(policy[key], names, step=step, field=field)
            policy[key] = _check_seconds(value, seconds_max, step=step, field=field)
    for key, checked in (("engine", command_placement.check_engine), ("transaction", _check_flag)):
        if key in policy:
            field = f"{within}.{key}"
            value = evaluation.render_value(policy[key], names, step=step, field=field)
            policy[key] = checked(value, step=step, field=field)
    return policy


def _check_flag(value: Any, *, step: str, field: str) -> bool:
    boolean = coercion.coerce_boolean(value)
    if boolean is None:
        raise Refusal.for_step(
            "validation", step, f"{field}: {value!r:.80} is neither true nor false"
        )
    return boolean


def _check_seconds(value: Any, seconds_max: int, *, step: str, field: str) -> float:
    """Admit a duration, which may be a part of a second."""
    duration_s = coercion.coerce_duration_s(value)
    if duration_s is None or not 0 < duration_s <= seconds_max:
        raise Refusal.for_step(
            "validation",
            step,
            f"{field}: {value!r:.80} is not a duration above 0 and up to {seconds_max} s",
        )
    return duration_s


def get_frame_attempts_max(stage: StageState) -> int:
    """Return how often one frame may be dispatched."""
    return int(stage.frame_policy.get("max_attempts", _ATTEMPTS_MAX))


def admit_run(draft: DecisionDraft, run: RunState) -> RunOutcome | None:
    """Return None to let the activation run, else how it ends without having run."""
    if draft.program.steps[run.step].spec.policy.admit is None:
        return None
    return evaluate_admission(
        draft, run.step, evaluation.build_scope(draft, **_bind_activator(draft, run))
    )


def evaluate_admission(draft: DecisionDraft, step: str, names: TemplateScope) -> RunOutcome | None:
    """Evaluate the admission rules of a step; None admits it."""
    policy = draft.program.steps[step].spec.policy.admit
    if policy is None or not policy.rules:
        # Without a rule nothing is denied.
        return None
    allowed = not policy.rules[-1].then.allow
    notes: list[str] = []
    for rule in policy.rules:
        holds, undefined = True, None
        if rule.when is not None:
            holds, undefined = evaluation.evaluate_condition(
                rule.when, names, step=step, field="spec.policy.admit"
            )
        if undefined is not None:
            notes = [evaluation.UNDEFINED_IN_CONDITION]
        if holds:
            allowed = rule.then.allow
            break
    if allowed:
        return None
    if policy.on_deny == "skip":
        return RunOutcome(status=RunStatus.SKIPPED, notes=notes)
    text = f"step {step!r} is not admitted: no rule of its policy allows it"
    return RunOutcome(
        status=RunStatus.FAILED,
        error=ErrorObject(kind="policy", code="POLICY", step=step, message=text),
    )


def _bind_activator(draft: DecisionDraft, run: RunState) -> dict[str, Any]:
    """Bind how the step that came last to this one ended; the entry has none before it."""
    step = draft.state.steps.get(run.came_from) if run.came_from is not None else None
    if step is None:
        return {}
    event = step_end_events.build_step_end_event(draft, step, status=step.status, error=step.error)
    return {"event": event, "output": evaluation.view_output(draft, step)}
