"""Two runs side by side: their inputs, their steps, and what differs of each.

The console's panel "Two runs" (`console/src/run/run_difference.ts`) compares in the same way.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

Answer = Mapping[str, Any]


class ComparedInput(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An input that is not the same in both; it is left out of the run that lacks it."""

    name: str
    one: Any | UnsetType = UNSET
    other: Any | UnsetType = UNSET


class ComparedStep(Struct, frozen=True, kw_only=True):
    """A step of either run; `differences` says in words what is not equal.

    Durations are shown, and never count as a difference. Digests are of the latest results.
    """

    step: str
    one: Answer | None
    other: Answer | None
    one_digest: str | None
    other_digest: str | None
    differences: list[str]


class RunDifference(Struct, frozen=True, kw_only=True):
    """All that differs between two runs."""

    one: Answer
    other: Answer
    is_alike: bool
    differences: list[str]
    inputs: list[ComparedInput]
    steps: list[ComparedStep]


_FIELD_NAMES = ("execution_id", "path", "playbook_version", "status", "version", "duration")


def compare_runs(moments: Sequence[Answer], results: Sequence[Answer]) -> RunDifference:
    """Compare two runs by their moments and by the lists of their results."""
    one, other = moments
    inputs = compare_inputs(one["workload"], other["workload"])
    steps = _compare_steps(moments, results)
    differences = [
        name.replace("_", " ") for name in ("path", "status") if one[name] != other[name]
    ]
    return RunDifference(
        one={name: one[name] for name in _FIELD_NAMES},
        other={name: other[name] for name in _FIELD_NAMES},
        is_alike=not (differences or inputs or any(step.differences for step in steps)),
        differences=differences,
        inputs=inputs,
        steps=steps,
    )


def compare_inputs(one: Any, other: Any) -> list[ComparedInput]:
    """List the inputs that are not the same in both."""
    ours, theirs = _get_fields(one), _get_fields(other)
    return [
        ComparedInput(name=name, one=ours.get(name, UNSET), other=theirs.get(name, UNSET))
        for name in dict.fromkeys([*ours, *theirs])
        if name not in ours or name not in theirs or not _is_same(ours[name], theirs[name])
    ]


def _compare_steps(moments: Sequence[Answer], results: Sequence[Answer]) -> list[ComparedStep]:
    """Compare the steps of both, in the order of the first."""
    ours, theirs = ({step["step"]: step for step in moment["steps"]} for moment in moments)
    first, second = ({item["step"]: item for item in answer["results"]} for answer in results)
    compared = []
    for step in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(step), theirs.get(step)
        differences = _list_step_differences(one, other)
        if one is not None and other is not None:
            differences += _list_result_differences(first.get(step), second.get(step))
        compared.append(
            ComparedStep(
                step=step,
                one=one,
                other=other,
                one_digest=first.get(step, {}).get("digest"),
                other_digest=second.get(step, {}).get("digest"),
                differences=differences,
            )
        )
    return compared


def _list_step_differences(one: Answer | None, other: Answer | None) -> list[str]:
    if one is None or other is None:
        return ["only in the second run" if one is None else "only in the first run"]
    differences = []
    if one["status"] != other["status"]:
        differences.append("status")
    if not _is_same(one["error"], other["error"]):
        differences.append("error")
    differences += [
        f"{name}: {one[name]}, {other[name]}"
        for name in ("runs", "retries")
        if one[name] != other[name]
    ]
    if one["came_from"] != other["came_from"]:
        differences.append("came from")
    return differences


def _list_result_differences(one: Answer | None, other: Answer | None) -> list[str]:
    if one is None or other is None:
        return [] if one is other else ["result"]
    if one["row_count"] != other["row_count"]:
        counts = ["-" if item["row_count"] is None else item["row_count"] for item in (one, other)]
        return [f"rows: {counts[0]}, {counts[1]}"]
    return [] if one["digest"] == other["digest"] else ["result"]


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two values of JSON are the same; true is not the number 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def _get_fields(value: Any) -> Answer:
    return value if isinstance(value, dict) else {}
