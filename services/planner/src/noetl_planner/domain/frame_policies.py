"""A frame policy as one stage uses it: its numbers rendered and checked (language, 7.6)."""

from typing import Any

from noetl_contracts import codec
from noetl_planner.domain import engines, evaluation
from noetl_planner.domain.evaluation import Refusal
from noetl_playbook import coercion
from noetl_playbook.model import Frame
from noetl_playbook.scope import Scope
from noetl_replay.state import StageState

_ATTEMPTS_MAX = 3
_NUMBERS = {
    "max_rows": (1, 1_000_000),
    "max_bytes": (1, 1 << 34),
    "row_concurrency": (1, 10_000),
    "max_attempts": (1, 1_000),
}


_SECONDS_MAX = {"max_seconds": 86_400, "lease_seconds": 86_400, "heartbeat_seconds": 43_200}


def rendered(frame: Frame | None, names: Scope, *, step: str, within: str) -> dict[str, Any]:
    """Render what is written of a frame policy; raises `Refusal`. `within` names its place."""
    policy: dict[str, Any] = codec.builtins(frame) if frame else {}
    for key, (least, most) in _NUMBERS.items():
        if key in policy:
            field = f"{within}.{key}"
            value = evaluation.render(policy[key], names, step=step, field=field)
            if key == "max_bytes":
                value = coercion.size_bytes(value) or value
            policy[key] = evaluation.number(value, step=step, field=field, least=least, most=most)
    for key, seconds_max in _SECONDS_MAX.items():
        if key in policy:
            field = f"{within}.{key}"
            value = evaluation.render(policy[key], names, step=step, field=field)
            policy[key] = _seconds(value, seconds_max, step=step, field=field)
    for key, checked in (("engine", engines.checked), ("transaction", _flag)):
        if key in policy:
            field = f"{within}.{key}"
            value = evaluation.render(policy[key], names, step=step, field=field)
            policy[key] = checked(value, step=step, field=field)
    return policy


def _flag(value: Any, *, step: str, field: str) -> bool:
    found = coercion.boolean(value)
    if found is None:
        raise Refusal.of("validation", step, f"{field}: {value!r:.80} is neither true nor false")
    return found


def _seconds(value: Any, seconds_max: int, *, step: str, field: str) -> float:
    """Admit a duration, which may be a part of a second."""
    found = coercion.duration_s(value)
    if found is None or not 0 < found <= seconds_max:
        raise Refusal.of(
            "validation",
            step,
            f"{field}: {value!r:.80} is not a duration above 0 and up to {seconds_max} s",
        )
    return found


def attempts_max(stage: StageState) -> int:
    """Return how often one frame may be dispatched."""
    return int(stage.frame_policy.get("max_attempts", _ATTEMPTS_MAX))
